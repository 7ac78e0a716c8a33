"""What launches do, counted: their PTX is executed by the interpreter of the tests, and assembled by ptxas."""

import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from gpu_roofline import WARP, Work
from instruction_costs import costs_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "runtime" / "cuda"))

from ptx_interpreter import Traffic, counted_name
from ptx_text import parse
from simulation import Simulator

from steelyard.codegen.compilation import compile_kernel
from steelyard.codegen.kernel import Kernel
from steelyard.runtime.cuda.launches import Launch
from steelyard.targets.architectures import TARGETS

_LINE_BYTES = 128
_NO_OPERATION = 0x918  # the low twelve bits of the first of an instruction's two words


def launches_of(target: str, call) -> list[tuple[Kernel, Work]]:
    """The launches of `call(launcher)`, with what each does."""
    simulator = Simulator(target, measured=True)
    call(simulator)
    return [(launch.kernel, _work(launch, traffic, simulator)) for launch, traffic in simulator.launches]


def _work(launch: Launch, traffic: Traffic, simulator: Simulator) -> Work:
    kernel = launch.kernel
    tensors = {tensor.data_ptr(): tensor.nbytes for tensor in launch.arguments if isinstance(tensor, torch.Tensor)}
    loads = sum(count for opcode, count in traffic.issued.items() if opcode.startswith("ld.global"))
    warps = launch.blocks * kernel.threads // WARP
    return Work(
        bytes=sum(tensors.values()),
        sector_bytes=sum(traffic.sectors.values()),
        instructions=costs_of(traffic.issued),
        memory_wavefronts=sum(traffic.wavefronts.values()) + sum(traffic.sectors.values()) / _LINE_BYTES,
        blocks=launch.blocks,
        threads=kernel.threads,
        shared_bytes=compile_kernel(kernel, simulator.target).shared_bytes,
        rounds=max(1.0, loads / warps / kernel.loads_in_flight),
    )


@dataclass(frozen=True)
class Assembled:
    """What ptxas makes of a kernel."""

    registers: int
    instructions: int


def ptxas() -> str | None:
    return shutil.which("ptxas")


@cache
def assemble(kernel: Kernel, target: str) -> Assembled:
    """A kernel's registers, and its machine instructions if no loop is unrolled: those that the PTX has, too."""
    text = compile_kernel(kernel, TARGETS[target]).ptx
    registers, _ = _run_ptxas(text, target)
    _, cubin = _run_ptxas(re.sub(r"^(\$\w+:)$", r'\1\n\t.pragma "nounroll";', text, flags=re.M), target)
    return Assembled(registers, _machine_instructions(cubin))


def _run_ptxas(text: str, target: str) -> tuple[int, bytes]:
    """Registers, and the file that is made."""
    with tempfile.TemporaryDirectory() as directory:
        source, cubin = Path(directory) / "kernel.ptx", Path(directory) / "kernel.cubin"
        source.write_text(text)
        command = [ptxas() or "ptxas", f"-arch={target}", "-v", str(source), "-o", str(cubin)]
        report = subprocess.run(command, capture_output=True, text=True, check=True)
        (registers,) = re.findall(r"Used (\d+) registers", report.stderr)
        return int(registers), cubin.read_bytes()


def _machine_instructions(cubin: bytes) -> int:
    """The instructions of the one kernel in an ELF file, without what fills its end."""
    (sections_at,) = struct.unpack_from("<Q", cubin, 40)
    count, names_index = struct.unpack_from("<HH", cubin, 60)
    sections = [struct.unpack_from("<IIQQQQ", cubin, sections_at + 64 * index) for index in range(count)]
    names = sections[names_index][4]
    for name, _, _, _, offset, size in sections:
        if cubin[names + name :].startswith(b".text."):
            words = struct.unpack_from(f"<{size // 8}Q", cubin, offset)[::2]
            return sum(word & 0xFFF != _NO_OPERATION for word in words)
    raise ValueError("the file holds no kernel")


def counted_instructions(kernel: Kernel, target: str) -> int:
    """The instructions of a kernel's PTX, each with its costs: comparable with those of the machine."""
    (entry,) = parse(compile_kernel(kernel, TARGETS[target]).ptx)[1].values()
    return int(costs_of(Counter(map(counted_name, entry.code))).total())
