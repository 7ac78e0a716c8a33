#!/bin/sh
# Runs instruction_sets.cpp on a processor with AVX-512 that Bochs emulates: a Linux kernel boots with the program as its
# only file. Takes minutes. For Debian: apt-get install bochs bochs-term bochsbios vgabios isolinux syslinux-common
# genisoimage cpio, and a kernel, `apt-get download linux-image-VERSION-cloud-amd64` unpacked by `dpkg-deb -x`.
# Usage: tests/runtime/emulate.sh VMLINUZ [MODEL]; MODEL is one of `bochs --help cpu`. PYTHON names the interpreter.
set -eu
cd "$(dirname "$0")/../.."
kernel=$1
model=${2:-corei7_skylake_x}
python=${PYTHON:-.venv/bin/python}
work=build/emulate
rm -rf $work/root $work/disc $work/serial
mkdir -p $work/root/dev $work/disc/isolinux

cmake -S runtime -B build/compare -G Ninja -DCMAKE_BUILD_TYPE=Release -DSTEELYARD_COMPARE=ON \
  -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" >$work/build.log
cmake --build build/compare --target instruction_sets >>$work/build.log
g++ -O2 -static tests/runtime/emulated_init.cpp -o $work/root/init
cp build/compare/instruction_sets $work/root
(cd $work/root && find . | cpio --quiet -o -H newc) >$work/disc/initrd

cp "$kernel" $work/disc/vmlinuz
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 $work/disc/isolinux
# What Bochs describes of xsavec, and its timers, is not what Linux expects.
cat >$work/disc/isolinux/isolinux.cfg <<END
default linux
label linux
kernel /vmlinuz
append initrd=/initrd console=ttyS0 quiet mitigations=off nopku nosmp nolapic noapic acpi=off tsc=unstable no_timer_check clearcpuid=xsavec,xsaves,xgetbv1
END
genisoimage -quiet -o $work/disc.iso -b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4 \
  -boot-info-table $work/disc
cat >$work/bochsrc <<END
display_library: term
cpu: model=$model, count=1, ips=50000000, reset_on_triple_fault=0, ignore_bad_msrs=1
memory: guest=512, host=512
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=$work/disc.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial
log: $work/log
info: action=ignore
clock: sync=none
END
echo c >$work/commands
# Bochs draws on a terminal and goes on after a halt: the last line of the program ends it.
TERM=vt100 script -qc "bochs -q -f $work/bochsrc -rc $work/commands" /dev/null >$work/screen 2>&1 </dev/null &
emulator=$!
until grep -q '^exit status' $work/serial 2>/dev/null; do
  kill -0 $emulator
  sleep 2
done
pkill -KILL -f "bochs.* -f $work/bochsrc" || true
cat $work/serial
grep -q '^exit status 0' $work/serial
