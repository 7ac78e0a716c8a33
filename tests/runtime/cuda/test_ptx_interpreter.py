"""How the interpreter runs threads, and what it refuses."""

import numpy as np
import pytest
from device_memory import DeviceMemory
from ptx_instructions import ACCESSES, ATOMICS, EXCHANGES, PARAMETERS
from ptx_interpreter import run
from ptx_text import PtxError

_HEAD = """.version 8.1
.target sm_89
.address_size 64
.extern .shared .align 16 .b8 pool[];
.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0
)
.maxntid 64, 1, 1
{
	.reg .pred 	%p<9>;
	.reg .b16 	%rs<9>;
	.reg .b32 	%r<19>;
	.reg .b64 	%rd<19>;
	ld.param.b64 	%rd1, [kernel_param_0];
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	mov.b64 	%rd4, pool;
	add.s64 	%rd5, %rd4, %rd2;
"""
_TAIL = "\n\tst.global.b32 \t[%rd3], %r2;\n\tret;\n}\n"


def words_after(body: str, words: int = 64, shared_bytes: int = 512, blocks: int = 1) -> list[int]:
    """%r2 of each thread after `body`."""
    memory = DeviceMemory()
    address = memory.allocate(4 * words)
    run(_HEAD + body + _TAIL, [address], blocks, memory, shared_bytes)
    return memory.view(address, 4 * words).view(np.uint32).tolist()


def refusal_of(body: str, **options) -> str:
    with pytest.raises(PtxError) as caught:
        words_after(body, **options)
    return str(caught.value)


def test_threads_that_part_meet_again():
    body = """
	and.b32 	%r3, %r1, 1;
	setp.eq.b32 	%p1, %r3, 0;
	@%p1 bra 	$EVEN;
	mov.b32 	%r2, 7;
	bra.uni 	$MET;
$EVEN:
	mov.b32 	%r2, 5;
$MET:
	redux.sync.max.u32 	%r4, %r2, -1;
	add.s32 	%r2, %r2, %r4;"""
    assert words_after(body) == [12, 14] * 32


def test_loops_end_for_each_thread_on_its_own():
    body = """
	mov.b32 	%r2, 0;
$AGAIN:
	add.s32 	%r2, %r2, 3;
	setp.lt.u32 	%p1, %r2, %r1;
	@%p1 bra 	$AGAIN;"""
    assert words_after(body) == [max(3, -(-t // 3) * 3) for t in range(64)]


def test_lanes_wait_for_their_warp():
    # Odd lanes reach the shuffle first; even ones only after a jump back.
    body = """
	and.b32 	%r3, %r1, 1;
	setp.eq.b32 	%p1, %r3, 1;
	mov.b32 	%r2, %r1;
	@%p1 bra 	$SHUFFLE;
	bra.uni 	$LATE;
$SHUFFLE:
	shfl.sync.bfly.b32 	%r2, %r1, 1, 31, -1;
	bra.uni 	$END;
$LATE:
	mov.b32 	%r5, 1;
	bra.uni 	$SHUFFLE;
$END:"""
    assert words_after(body) == [t ^ 1 for t in range(64)]


@pytest.mark.parametrize(
    ("exchange", "expected"),
    [
        ("shfl.sync.idx.b32 \t%r2, %r1, 5, 31, -1;", [5] * 32 + [37] * 32),
        ("shfl.sync.bfly.b32 \t%r2, %r1, 4, 31, -1;", [t ^ 4 for t in range(64)]),
        ("redux.sync.max.u32 \t%r2, %r1, -1;", [31] * 32 + [63] * 32),
    ],
)
def test_exchanges_between_the_lanes_of_a_warp(exchange, expected):
    assert words_after(f"\n\t{exchange}") == expected


def test_every_exchange_has_a_test():
    assert set(EXCHANGES) == {"shfl.sync.idx.b32", "shfl.sync.bfly.b32", "redux.sync.max.u32"}


def test_barrier_hands_shared_memory_over():
    body = """
	st.shared.b32 	[%rd5], %r1;
	bar.sync 	0;
	xor.b32 	%r3, %r1, 63;
	mul.wide.u32 	%rd6, %r3, 4;
	add.s64 	%rd7, %rd4, %rd6;
	ld.shared.b32 	%r2, [%rd7];"""
    assert words_after(body) == [63 - t for t in range(64)]
    assert "race" in refusal_of(body.replace("bar.sync \t0;", ""))


@pytest.mark.parametrize("writer", [0, 40, 63])
def test_nobody_writes_what_several_read(writer):
    body = f"""
	st.shared.b32 	[%rd5], %r1;
	bar.sync 	0;
	ld.shared.b32 	%r2, [%rd4];
	setp.eq.b32 	%p1, %r1, {writer};
	@%p1 st.shared.b32 	[%rd4], %r1;"""
    assert "threads write what another thread reads" in refusal_of(body)


def test_guards_and_vectors_and_parts():
    body = """
	setp.lt.u32 	%p1, %r1, 4;
	mov.b32 	%r2, 9;
	@!%p1 mov.b32 	%r2, 8;
	mov.b32 	{%rs1, %rs2}, %r1;
	mov.b32 	%r3, {%rs2, %rs1};
	add.s32 	%r2, %r2, %r3;"""
    assert words_after(body) == [(9 if t < 4 else 8) + (t << 16) for t in range(64)]
    body = """
	mul.wide.u32 	%rd6, %r1, 8;
	add.s64 	%rd7, %rd4, %rd6;
	st.shared.v2.b32 	[%rd7], {%r1, 100};
	ld.shared.v2.b32 	{%r2, %r3}, [%rd7];
	add.s32 	%r2, %r2, %r3;"""
    assert words_after(body) == [t + 100 for t in range(64)]


def test_lanes_know_nothing_of_what_others_wrote():
    body = """
	setp.lt.u32 	%p1, %r1, 4;
	@%p1 mov.b32 	%r3, %r1;
	mov.b32 	%r2, %r3;"""
    assert words_after(body) == [0, 1, 2, 3] + [0xCDCDCDCD] * 60


def test_parts_of_wide_registers():
    body = """
	mov.b32 	%r4, 7;
	mov.b64 	%rd6, {%r1, %r4};
	mov.b64 	{%r5, %r6}, %rd6;
	mov.b64 	{%rs1, %rs2, %rs3, _}, %rd6;
	mov.b32 	%r7, {%rs1, %rs3};
	sub.s32 	%r2, %r5, %r6;
	mad.lo.s32 	%r2, %r2, 10, %r7;"""
    assert words_after(body) == [((t - 7) * 10 + t + (7 << 16)) % 2**32 for t in range(64)]


@pytest.mark.parametrize("opcode", ACCESSES)
def test_access(opcode):
    """Each thread reverses its own numbers: a wide access on one side, single accesses on the other."""
    kind, space, count, width = ACCESSES[opcode]
    size, prefix = width // 8, {8: "%rs", 16: "%rs", 32: "%r", 64: "%rd"}[width]
    names = [f"{prefix}{10 + index}" for index in range(count)]
    wide = "{" + ", ".join(reversed(names)) + "}" if count > 1 else names[0]
    total = 64 * count * size

    def single(opcode: str, base: str, offset: int) -> list[str]:
        places = [f"[{base}+{offset + size * index}]" for index in range(count)]
        pairs = [(p, n) if opcode.startswith("st") else (n, p) for p, n in zip(places, names, strict=True)]
        return [f"{opcode}.b{width} \t{first}, {second};" for first, second in pairs]

    lines = [f"mul.wide.u32 \t%rd6, %r1, {count * size};", "add.s64 \t%rd7, %rd1, %rd6;", "add.s64 \t%rd8, %rd4, %rd6;"]
    if kind == "ld":
        base = "%rd7" if space == "global" else "%rd8"
        lines += [] if space == "global" else [*single("ld.global", "%rd7", 0), *single("st.shared", "%rd8", 0)]
        lines += [f"{opcode} \t{wide}, [{base}];", *single("st.global", "%rd7", total)]
    else:
        lines += single("ld.global", "%rd7", 0)
        lines += [f"{opcode} \t[{'%rd8' if space == 'shared' else f'%rd7+{total}'}], {wide};"]
        lines += [*single("ld.shared", "%rd8", 0), *single("st.global", "%rd7", total)] if space == "shared" else []
    memory, given = DeviceMemory(), np.random.default_rng(0).integers(0, 256, total, np.uint8)
    address = memory.put(np.concatenate((given, np.zeros_like(given))))
    run(_HEAD + "\n".join(lines) + "\n\tret;\n}\n", [address], 1, memory, total)
    expected = given.reshape(64, count, size)[:, ::-1].reshape(-1)
    assert memory.view(address + total, total).tolist() == expected.tolist()


@pytest.mark.parametrize("space", ["global", "shared"])
def test_a_narrow_load_fills_the_rest_with_zeros(space):
    body = f"""
	mov.b16 	%rs1, -1;
	st.{space}.b16 	[{"%rd3" if space == "global" else "%rd5"}], %rs1;
	ld.{space}.b8 	%rs2, [{"%rd3" if space == "global" else "%rd5"}];
	cvt.u32.u16 	%r2, %rs2;"""
    assert words_after(body) == [255] * 64


@pytest.mark.parametrize("opcode", PARAMETERS)
def test_parameter(opcode):
    width, given = PARAMETERS[opcode], 0xFEDCBA9876543210
    register = {32: "%r9", 64: "%rd9"}[width]
    head = _HEAD.replace("kernel_param_0\n)", f"kernel_param_0,\n\t.param .u{width} kernel_param_1\n)")
    body = f"\n\t{opcode} \t{register}, [kernel_param_1];\n\tadd.s64 \t%rd7, %rd3, %rd2;"
    memory = DeviceMemory()
    address = memory.put(np.zeros(64, np.uint64))
    run(f"{head}{body}\n\tst.global.b{width} \t[%rd7], {register};\n\tret;\n}}\n", [address, given], 1, memory)
    assert memory.view(address, 512).view(np.uint64).tolist() == [given % 2**width] * 64


@pytest.mark.parametrize("opcode", ATOMICS)
def test_atomic_maximum(opcode):
    memory = DeviceMemory()
    address = memory.put(np.array([10, 0], np.uint32))
    before = "%r4, " if opcode.startswith("atom") else ""
    body = f"\n\tand.b32 \t%r3, %r1, 31;\n\t{opcode} \t{before}[%rd1], %r3;\n\tret;\n}}\n"
    run(_HEAD + body, [address], 2, memory, 0)
    assert memory.view(address, 8).view(np.uint32).tolist() == [31, 0]


def test_blocks_have_their_own_shared_memory():
    body = """
	mov.u32 	%r3, %ctaid.x;
	st.shared.b32 	[%rd5], %r3;
	bar.sync 	0;
	ld.shared.b32 	%r2, [%rd5];
	setp.eq.b32 	%p1, %r3, 0;
	@%p1 bra 	$STORE;
	add.s64 	%rd3, %rd3, 256;
$STORE:"""
    assert words_after(body, words=128, blocks=2) == [0] * 64 + [1] * 64


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("\n\tmul.f32 \t%r2, %r1, %r1;", "not known"),
        ("\n\tadd.rn.ftz.f32 \t%r2, %r1, %r1;", "not known"),
        ("\n\tst.param.b32 \t[kernel_param_0], %r1;", "not known"),
        ("\n\tld.global.v4.b64 \t{%rd6, %rd7, %rd8, %rd9}, [%rd1];", "not known"),
        ("\n\tld.global.v2.b32 \t{%r2, %r3, %r4}, [%rd1];", "2 registers are needed"),
        ("\n\tsetp.eq.b32 \t%p1, %r1, 3;\n\t@%p1 redux.sync.max.u32 \t%r2, %r1, -1;", "guard"),
        ("\n\t@%p1 mov.b32 \t%r2, 1;", "before it is written"),
        ("\n\tmov.b32 \t%r2, %r9;", "before it is written"),
        ("\n\tcvt.u64.u32 \t%r2, %r1;", "is uint32"),
        ("\n\tld.shared.b32 \t%r2, [%rd5];", "never written"),
        ("\n\tst.shared.b32 \t[%rd5+512], %r1;", "outside"),
        ("\n\tst.shared.b32 \t[%rd4], %r1;", "race"),
        ("\n\tld.global.b32 \t%r2, [%rd3+4];", "behind"),
        ("\n\tld.global.b32 \t%r2, [%rd2];", "no memory"),
        ("\n\tld.global.b64 \t%rd6, [%rd3];", "multiple"),
        ("\n\tsetp.eq.b32 \t%p1, %r1, 3;\n\t@%p1 bra \t$L;\n\tbar.sync \t0;\n$L:\n\tmov.b32 \t%r2, 0;", "wait"),
        ("\n\tsetp.eq.b32 \t%p1, %r1, 3;\n\t@%p1 ret;\n\tbar.sync \t0;\n\tmov.b32 \t%r2, 0;", "guarded ret"),
        ("\n\tshfl.sync.bfly.b32 \t%r2, %r1, 1, 15, -1;", "whole warps"),
        ("\n\tredux.sync.max.u32 \t%r2, %r1, 255;", "all lanes"),
        ("\n\tbra.uni \t$OUT;\n$OUT:\n\tbar.sync \t1;", "bar.sync 0"),
    ],
)
def test_refuses(body, reason):
    assert reason in refusal_of(body)


def test_measures_how_accesses_fall_together():
    memory = DeviceMemory()
    address = memory.allocate(4 * 64 * 32)
    spread = "\n\tmul.wide.u32 \t%rd6, %r1, 128;\n\tadd.s64 \t%rd7, %rd1, %rd6;\n\tst.global.b32 \t[%rd7], %r1;"
    banks = "\n\tadd.s64 \t%rd8, %rd4, %rd6;\n\tst.shared.b32 \t[%rd8], %r1;"
    text = _HEAD + spread + banks + "\n\tst.global.b32 \t[%rd3], %r1;\n\tret;\n}\n"
    traffic = run(text, [address], 1, memory, 64 * 128, measured=True)
    # Two warps: spread words take one sector each, adjacent ones an eighth; 32 words of one bank conflict.
    assert traffic.sectors["st.global.4"] == 64 * 32 + 64 * 4
    assert traffic.conflicts == {"st.shared.4": 32}
    assert traffic.wavefronts == {"st.shared.4": 2 * 32}
    assert traffic.issued["st.global.b32"] == 2 * 2
    assert traffic.issued["st.shared.b32"] == traffic.issued["ret"] == 2


def test_counts_a_warp_once_whichever_of_its_lanes_run():
    guarded = "\n\tsetp.lt.u32 \t%p1, %r1, 40;\n\t@%p1 bra \t$IN;\n\tbra.uni \t$OUT;\n$IN:\n\tadd.s32 \t%r2, %r1, 1;"
    text = _HEAD + guarded + "\n\tmov.b32 \t{%rs1, %rs2}, %r2;\n$OUT:\n\tret;\n}\n"
    memory = DeviceMemory()
    issued = run(text, [memory.allocate(256)], 1, memory, measured=True).issued
    # The first warp takes the branch as a whole, the second with 8 of its lanes; all 24 others jump.
    assert (issued["setp.lt.u32"], issued["add.s32"], issued["mov.b32 {}"], issued["bra.uni"]) == (2, 2, 2, 1)
