import mmap
from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_cases import nvfp4, scheme_pairs
from torch._subclasses.fake_tensor import FakeTensorMode

from steelyard import reference
from steelyard.errors import ConstraintError, TargetError
from steelyard.formats.scheme_bits import scheme_bits
from steelyard.formats.schemes import Scheme
from steelyard.runtime import _cpu, cpu

MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
MX_COLUMN = Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")
DELAYED = Scheme("f8E4M3FN", "tensor", "f32", source="delayed")


def _fake():
    with FakeTensorMode():
        return torch.empty(4, 32)


def _freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(4, 32, dtype=torch.int32), "float32, bfloat16 or float16"),
        (torch.zeros(4, 32, dtype=torch.float64), "float32, bfloat16 or float16"),
        (torch.tensor(1.0), "at least one dim"),
        (torch.zeros(4, 32, device="meta"), "on the CPU"),
        (torch.zeros(4, 32).to_sparse(), "strided"),
        ([[1.0]], "must be a tensor"),
        (_fake(), "memory of its own"),
        (torch._efficientzerotensor((4, 32)), "memory of its own"),
        (_freed(torch.zeros(4, 32)), "memory of its own"),
        (_freed(torch.zeros(8, 32)[4:]), "memory of its own"),
        (_freed(torch.zeros(32, 2, 2).transpose(0, 2)), "memory of its own"),
    ],
    ids=["int", "double", "0-d", "meta", "sparse", "list", "fake", "zero", "freed", "freed-view", "freed-strided"],
)
def test_sources_that_are_refused(x, message):
    with pytest.raises(ConstraintError, match=message):
        cpu.quantize(x, MX, None)
    with pytest.raises(ConstraintError, match=message):
        cpu.amax(x)


def test_a_negated_view_keeps_its_sign():
    x = torch.randn(64, 32, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    found, _ = cpu.quantize(x, MX, None)
    expected, _ = cpu.quantize(x.clone(), MX, None)
    assert torch.equal(found.codes, expected.codes)


@pytest.mark.parametrize(
    ("row", "col", "constraint"),
    [
        (MX_COLUMN, None, "quantize_block"),
        (None, MX, "quantize_block"),
        (DELAYED, None, "quantize_scale"),
        (nvfp4(rounding="stochastic"), None, "quantize_rng"),
        (Scheme("i8", "1xK", "f32", custom="int8"), None, "quantize_scheme"),
        (Scheme("f8E4M3FN", "1x32", "f8E8M0FNU", layout="gemm"), None, "quantize_scheme"),
    ],
)
def test_schemes_that_are_refused(row, col, constraint):
    with pytest.raises(ConstraintError) as error:
        cpu.quantize(torch.zeros(4, 32), row, col)
    assert error.value.constraint == constraint


def test_one_amax_for_two_kinds_of_copy_is_refused():
    with pytest.raises(ConstraintError, match="pair"):
        cpu.quantize(torch.zeros(16, 16), nvfp4(), nvfp4(rht=True), amax=torch.tensor(1.0))


def _copies():
    copies = cpu.quantize(torch.randn(40, 64), MX, MX_COLUMN)
    for copy in copies:
        copy.codes.fill_(0xA5)
        copy.scales.fill_(0x5A)
    return copies


def _assert_untouched(*copies):
    for copy in copies:
        assert (copy.codes == 0xA5).all()
        assert (copy.scales == 0x5A).all()


def _with_short_codes(copy):
    copy.codes = copy.codes[:, :-1].contiguous()


def _with_strided_codes(copy):
    copy.codes = copy.codes.t().contiguous().t()


def _with_float_scales(copy):
    copy.scales = torch.full_like(copy.scales, 0x5A, dtype=torch.float32)


@pytest.mark.parametrize("damage", [_with_short_codes, _with_strided_codes, _with_float_scales])
def test_outputs_that_do_not_fit_are_refused_untouched(damage):
    row, col = _copies()
    damage(col)
    with pytest.raises(ConstraintError, match=r"col\."):
        cpu.quantize_into(torch.randn(40, 64), row, col)
    _assert_untouched(row, col)


def test_outputs_of_another_shape_or_usage_are_refused_untouched():
    row, col = _copies()
    with pytest.raises(ConstraintError, match="41x64"):
        cpu.quantize_into(torch.randn(41, 64), row, col)
    with pytest.raises(ConstraintError, match="columnwise"):
        cpu.quantize_into(torch.randn(40, 64), col, row)
    _assert_untouched(row, col)


def test_overlapping_outputs_are_refused_untouched():
    row, col = _copies()
    col.codes = row.codes.view(-1)[:].view(40, 64)
    with pytest.raises(ConstraintError, match="memory of its own"):
        cpu.quantize_into(torch.randn(40, 64), row, col)
    _assert_untouched(row, col)


def test_an_output_inside_the_source_is_refused_untouched():
    memory = torch.zeros(40, 64)
    row, _ = _copies()
    row.codes = memory.view(torch.uint8).view(-1)[: 40 * 64].view(40, 64)
    with pytest.raises(ConstraintError, match=r"memory that x uses"):
        cpu.quantize_into(memory, row, None)
    assert (memory == 0).all()


def test_a_missing_operand_leaves_outputs_untouched():
    copy, _ = cpu.quantize(torch.randn(8, 16), DELAYED, None, scale=torch.tensor(1.0))
    copy.codes.fill_(0xA5)
    amax = copy.amax.clone()
    with pytest.raises(ConstraintError, match="delayed"):
        cpu.quantize_into(torch.randn(8, 16), copy, None, amax=torch.tensor(3.0))
    assert (copy.codes == 0xA5).all()
    assert copy.amax == amax


def test_decoders_refuse_what_does_not_fit():
    copy, _ = cpu.quantize(torch.randn(40, 64), MX, None)
    with pytest.raises(ConstraintError, match="dtype must be"):
        cpu.dequantize(copy, torch.float64)
    with pytest.raises(ConstraintError, match="1x32"):
        cpu.transpose(copy)
    copy.scales = copy.scales[:-1]
    for decoder in (cpu.dequantize, cpu.swizzle):
        with pytest.raises(ConstraintError, match=r"copy\.scales"):
            decoder(copy)
    tensor, _ = cpu.quantize(torch.randn(4, 4), scheme_pairs()[0][0], None)
    with pytest.raises(ConstraintError, match="block scales"):
        cpu.swizzle(tensor)


@pytest.mark.parametrize("part", ["codes", "scales", "amax"])
def test_copies_with_freed_parts_are_refused(part):
    copy, _ = cpu.quantize(torch.randn(32, 64), nvfp4(), None)
    intact, _ = cpu.quantize(torch.randn(32, 64), nvfp4(), None)
    _freed(getattr(copy, part))
    for read in (cpu.dequantize, cpu.swizzle, lambda damaged: cpu.qgemm(damaged, intact)):
        with pytest.raises(ConstraintError, match="memory of its own"):
            read(copy)


def test_stand_ins_of_torch_func_are_refused():
    x = torch.randn(8, 64)
    for transform in (torch.vmap, torch.func.functionalize):
        with pytest.raises(ConstraintError, match="memory of its own"):
            transform(lambda a: cpu.amax(a))(x)


def test_dequantize_refuses_memory_that_does_not_fit():
    copy, _ = cpu.quantize(torch.randn(40, 64), MX, None)
    for out in (torch.zeros(40, 63), torch.zeros(40, 64).half(), torch.zeros(64, 40).t()):
        with pytest.raises(ConstraintError, match="out must be contiguous"):
            cpu.dequantize(copy, out=out)
        assert (out == 0).all()
    memory = torch.zeros(40, 64)
    copy.codes = memory.view(torch.uint8).view(-1)[-40 * 64 :].view(40, 64)
    with pytest.raises(ConstraintError, match=r"memory that copy\.codes uses"):
        cpu.dequantize(copy, out=memory)
    assert (memory == 0).all()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"amax_history": torch.ones(2, 2)}, r"must be a vector .* got shape \(2, 2\)"),
        ({"amax_history": [1.0]}, "amax_history must be a tensor, got list"),
        ({"amax_history": torch.ones(2).bfloat16()}, "amax_history must be contiguous torch.float32"),
        ({"scale": torch.ones(2)}, r"or have such a column for each expert, got shape \(2,\)"),
        (
            {"scale": torch.ones(2, 2)},
            r"one float32 value, or one for each expert, got torch.float32 of shape \(2, 2\)",
        ),
        ({"scale": torch.tensor(1.0).bfloat16()}, "or one for each expert, got torch.bfloat16"),
        ({"scale": 1.0}, "scale must be a tensor, got float"),
        ({"scheme": "mxfp8"}, "scheme must be a Scheme, got 'mxfp8'"),
        ({"margin": 0.5}, "margin must be an integer from -126 to 126, got 0.5"),
        ({"algorithm": "median"}, "algorithm must be max, most_recent or a callable, got 'median'"),
        ({"algorithm": lambda history: None}, "algorithm must return one amax, got None"),
    ],
)
def test_update_scale_says_what_must_hold(changed, says):
    right = {"scale": torch.tensor(1.0), "amax_history": torch.ones(2), "scheme": DELAYED}
    with pytest.raises(ConstraintError, match=says):
        cpu.update_scale(**{**right, **changed})


COPY = cpu.quantize(torch.randn(32, 64), MX, None)[0]
FP4 = cpu.quantize(torch.randn(32, 64), nvfp4(), None)[0]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: cpu.dequantize(torch.randn(4, 4)), "copy must be a QuantizedCopy, got Tensor; quantize it first"),
        (lambda: cpu.transpose(None), "copy must be a QuantizedCopy, got NoneType"),
        (lambda: cpu.swizzle(3), "copy must be a QuantizedCopy, got int"),
        (lambda: cpu.pack("x"), "copy must be a QuantizedCopy, got str"),
        (lambda: cpu.unpack(COPY), "weight must be a PackedWeight, got QuantizedCopy; pack it first"),
        (lambda: cpu.dequantize(COPY, "float32"), "dtype must be float32, bfloat16 or float16, got 'float32'"),
        (lambda: cpu.dequantize(replace(COPY, scheme="mxfp8")), "copy.scheme must be a Scheme, got 'mxfp8'"),
        (lambda: cpu.dequantize(replace(COPY, shape=(-32, 64))), r"copy.shape must be a tuple of two sizes .*-32"),
        (lambda: cpu.dequantize(replace(COPY, shape=(32, 64, 1))), "copy.shape must be a tuple of two sizes"),
        (lambda: cpu.dequantize(replace(COPY, columnwise=0)), "copy.columnwise must be True or False, got 0"),
        (lambda: cpu.dequantize(replace(COPY, amax=torch.ones(()))), "copy.amax must be None for block 1x32"),
        (lambda: cpu.dequantize(replace(FP4, amax=None)), "copy.amax must be a tensor, got NoneType"),
        (lambda: cpu.dequantize(replace(COPY, scales=COPY.scales[:-1])), r"copy.scales .* \(32, 2\), got .* \(31, 2\)"),
        (lambda: cpu.qgemm(replace(COPY, scheme=None), COPY), "a.scheme must be a Scheme, got None"),
        (lambda: cpu.qgemm(COPY, COPY, preactivation=1), "preactivation must be True or False, got 1"),
        (lambda: cpu.qgemm(COPY, COPY, epilogue=["gelu"]), r"epilogue must be one of none, .* got \['gelu'\]"),
        (lambda: cpu.qgemm(FP4, replace(cpu.pack(FP4), shape=None)), "b.shape must be a tuple of two sizes"),
        (lambda: cpu.qgemm(FP4, replace(cpu.pack(FP4), scheme=MX)), "b must have an FP4 scheme, got f8E4M3FN"),
        (lambda: cpu.unpack(replace(cpu.pack(FP4), shape=(32, 128))), "weight.data must be contiguous torch.uint8"),
        (lambda: cpu.quantize(torch.ones(4, 32), "mxfp8", None), "row must be a Scheme, got 'mxfp8'"),
        (lambda: cpu.quantize(torch.ones(4, 32), None, 3), "col must be a Scheme, got 3"),
        (
            lambda: cpu.quantize(torch.ones(4, 32), DELAYED, None, scale="1"),
            "scale must be a tensor or a number, got str",
        ),
        (lambda: cpu.quantize(torch.ones(4, 32), DELAYED, None, scale=torch.ones(2)), r"scale must be .* shape \(2,\)"),
        (lambda: cpu.quantize(torch.ones(4, 32), DELAYED, None, scale=torch.ones((), device="meta")), "scale .* CPU"),
        (
            lambda: cpu.quantize(torch.ones(4, 32), nvfp4(), None, amax=[1.0]),
            "amax must be a tensor or a number, got list",
        ),
        (lambda: cpu.quantize(torch.ones(4, 32), nvfp4(), None, amax=torch.ones(2)), "amax must have 1 values, got 2"),
        (lambda: cpu.quantize(torch.ones(4, 32), MX, None, rng=3), r"rng must be two integers \(seed, offset\), got 3"),
        (
            lambda: cpu.quantize_into(torch.ones(4, 32), torch.ones(4, 32), None),
            "row must be a QuantizedCopy, got Tensor",
        ),
        (
            lambda: cpu.empty_copy(MX, (4, -1), columnwise=False),
            r"shape must be a tuple of two sizes \(M, N\), got \(4, -1\)",
        ),
        (lambda: cpu.empty_copy(MX, (4, 32), columnwise=None), "columnwise must be True or False, got None"),
        (lambda: cpu.amax(torch.ones(4, 32), rht=1), "rht must be True or False, got 1"),
        (lambda: cpu.amax(torch.nested.nested_tensor([torch.ones(2, 4)])), "x must be a strided tensor .* nested"),
        (lambda: cpu.amax(np.ones((4, 32), np.float32)), "x must be a tensor, got ndarray"),
        (lambda: cpu.produce(["gelu"], (torch.ones(4, 32),), torch.float32), "producer must be one of relu, .* got"),
        (lambda: cpu.produce("gelu", torch.ones(4, 32), torch.float32), "inputs must be a tuple, got Tensor"),
        (lambda: cpu.produce("gelu", (torch.ones(4, 32),), None), "dtype must be float32, .* got None"),
        (lambda: cpu.produce("rms_norm", (torch.ones(4, 32), None, "1"), torch.float32), "epsilon .* number, got '1'"),
    ],
)
def test_wrong_arguments_are_named(call, says):
    with pytest.raises(ConstraintError, match=says):
        call()


def test_an_instruction_set_must_have_a_name():
    with pytest.raises(TargetError, match="must be a name or None, got 3"):
        cpu.set_isa(3)


@pytest.mark.parametrize("qgemm", [cpu.qgemm, reference.qgemm], ids=["cpu", "reference"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"accumulate": torch.ones(6)}, r"accumulate must have shape \(4, 6\) .* got \(6,\)"),
        ({"residual": torch.ones(6)}, r"residual must have shape \(4, 6\) .* got \(6,\)"),
        ({"bias": torch.ones(4, 6)}, r"bias must have shape \(6,\) .* got \(4, 6\)"),
        ({"bias": torch.ones(6, dtype=torch.float64)}, r"float32, bfloat16 or float16, got .* torch.float64"),
        ({"bias": torch.ones(6, dtype=torch.int32)}, r"float32, bfloat16 or float16, got .* torch.int32"),
        ({"bias": torch.ones(6, dtype=torch.complex64).conj().imag}, "negated"),
        ({"accumulate": torch.ones(4, 6, dtype=torch.float64)}, "torch.float64"),
        ({"bias": [1.0] * 6}, "bias must be a tensor, got list"),
        ({"out_dtype": torch.float64}, "out_dtype must be float32, bfloat16 or float16, got torch.float64"),
        ({"out_dtype": torch.int32}, "out_dtype must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_both_gemms_refuse_the_same_options(qgemm, options, says):
    a, b = (reference.quantize(torch.randn(rows, 32), MX, None)[0] for rows in (4, 6))
    with pytest.raises(ConstraintError, match=says):
        qgemm(a, b, **options)


def test_both_gemms_refuse_what_is_no_copy():
    copy, _ = cpu.quantize(torch.randn(4, 32), MX, None)
    for qgemm in (cpu.qgemm, reference.qgemm):
        with pytest.raises(
            ConstraintError, match=r"operands must be quantized copies, .*, got QuantizedCopy and Tensor"
        ):
            qgemm(copy, torch.randn(4, 32))


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_read_only_outputs_are_refused():
    row, _ = cpu.quantize(torch.ones(64, 64), MX, None)
    memory = mmap.mmap(-1, 64 * 64 * 4, prot=mmap.PROT_READ)
    read_only = torch.frombuffer(memory, dtype=torch.float32).view(64, 64)
    codes = torch.frombuffer(memory, dtype=torch.uint8)[: 64 * 64].view(64, 64)
    for write in (
        lambda: cpu.dequantize(row, out=read_only),
        lambda: cpu.qgemm(row, row, out=read_only),
        lambda: cpu.quantize_into(torch.ones(64, 64), replace(row, codes=codes), None),
    ):
        with pytest.raises(ConstraintError, match="must be memory that can be written"):
            write()
    assert not read_only.any()


OUT = torch.zeros(64)
ADDRESS = OUT.data_ptr()
BITS = scheme_bits(nvfp4())
MATRIX = (ADDRESS, 0, 4, 4, 4, 1)
NO_MATRIX = (0, 0, 0, 0, 0, 0)
BITS = scheme_bits(MX)
OPERAND = (BITS, False, ADDRESS, ADDRESS, 0, 4, 4)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: _cpu.amax((0, 0, 4, 4, 4, 1), ADDRESS, False, False, 1), "memory of their own"),
        (lambda: _cpu.amax((4096, 0, 4, 4, 4, 1), ADDRESS, False, False, 1), "memory of their own"),
        (lambda: _cpu.amax(MATRIX, 0, False, False, 1), "memory of their own"),
        (lambda: _cpu.amax((ADDRESS, 0, -4, 4, 4, 1), ADDRESS, False, False, 1), "sizes must not be negative"),
        (lambda: _cpu.amax((ADDRESS, 3, 4, 4, 4, 1), ADDRESS, False, False, 1), "a dtype must be the number of one"),
        (
            lambda: _cpu.quantize(MATRIX, (BITS, 0.0, 0, ADDRESS, 0, False), None, 0, 0, 0, 1, None),
            "memory of their own",
        ),
        (lambda: _cpu.quantize(MATRIX, (1 << 20, 0.0, ADDRESS, ADDRESS, 0, False), None, 0, 0, 0, 1, None), "the bits"),
        (lambda: _cpu.qgemm(OPERAND, (BITS, False, 0, ADDRESS, 0, 4, 4), NO_MATRIX, NO_MATRIX, MATRIX, 1), "memory of"),
        (lambda: _cpu.qgemm(OPERAND, OPERAND, NO_MATRIX, NO_MATRIX, (0, 0, 4, 4, 4, 1), 1), "memory of their own"),
        (lambda: _cpu.dequantize(BITS, False, ADDRESS, 0, 0, 4, 4, ADDRESS, 0, 1), "memory of their own"),
        (lambda: _cpu.transpose(OPERAND, (BITS, True, 0, ADDRESS, 0, 4, 4), 1), "memory of their own"),
        (lambda: _cpu.swizzle(0, 4, 4, 4, 1, ADDRESS), "memory of their own"),
        (lambda: _cpu.pack_weight((BITS, ADDRESS, ADDRESS, ADDRESS, 4, -4), ADDRESS), "sizes must not be negative"),
        (lambda: _cpu.unpack_weight(0, (BITS, ADDRESS, ADDRESS, ADDRESS, 4, 4)), "memory of their own"),
        (lambda: _cpu.update_scales((*[ADDRESS] * 4, 0, 1), 0, False, 448.0, 0.0, False), "at least one slot"),
        (
            lambda: _cpu.update_scales((ADDRESS, 0, *[ADDRESS] * 2, 4, 1), 0, False, 448.0, 0.0, False),
            "memory of their own",
        ),
        (lambda: _cpu.fingerprint(0, 64), "memory of their own"),
        (lambda: _cpu.packed_size(0, -1, 4), "sizes must not be negative"),
        (lambda: _cpu.produce(MATRIX, (99, 0, *[MATRIX] * 4, 0.0), 0, 1), "a producer must be the number of one"),
        (lambda: _cpu.produce(MATRIX, (0, 99, *[MATRIX] * 4, 0.0), 0, 1), "an activation must be the number of one"),
    ],
)
def test_native_functions_refuse_numbers_that_cannot_be_right(call, says):
    with pytest.raises(ConstraintError, match=says) as error:
        call()
    assert error.value.constraint == "cpu_argument"
    assert not OUT.any()


def test_empty_matrices_need_no_memory():
    assert cpu.amax(torch.empty(0, 32)) == 0
    copy, _ = cpu.quantize(torch.empty(0, 32), MX, None)
    assert cpu.dequantize(copy).shape == (0, 32)
