"""Builders infer types; what they build verifies, and what cannot be built raises the named constraint."""

from contextlib import ExitStack

import pytest
from torch_mlir import ir

from steelyard.dialect import load, make_context, scaled
from steelyard.dialect.types import ScaledInfo, TensorInfo
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme

MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
MX_COL = Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")
FP8 = Scheme("f8E4M3FN", "tensor", "f32")
DELAYED = Scheme("f8E4M3FN", "tensor", "f32", source="delayed")
NV_ROW = Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="row")
NV_SR = Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="tensor", rounding="stochastic")


@pytest.fixture(params=["builtin", "torch"])
def function(request):
    """Makes a function whose arguments have given shapes and dtypes; what the test builds in it must verify."""
    module = None

    def arguments(*specs: tuple[tuple[int | None, ...], str]) -> list[ir.Value]:
        nonlocal module
        dtypes = {"int": {"builtin": "i64", "torch": "si64"}[request.param]}
        infos = [TensorInfo(request.param, shape, dtypes.get(dtype, dtype)) for shape, dtype in specs]
        parameters = ", ".join(f"%a{i}: {info}" for i, info in enumerate(infos))
        module = ir.Module.parse(f"func.func @f({parameters}) {{ return }}")
        block = module.body.operations[0].regions[0].blocks[0]
        stack.enter_context(ir.InsertionPoint.at_block_begin(block))
        return list(block.arguments)

    with make_context(), ir.Location.unknown(), ExitStack() as stack:
        yield arguments
        assert module is not None
        assert module.operation.verify()


def test_matmul_infers_the_product_of_each_kind(function):
    x, w, dy = function(((2, None, 64), "bf16"), ((48, 64), "bf16"), ((2, None, 48), "bf16"))
    shapes = {
        kind: scaled.matmul(lhs, rhs, kind=kind).result.type
        for kind, lhs, rhs in (("fprop", x, w), ("dgrad", dy, w), ("wgrad", dy, x))
    }
    namespace = "torch" if "torch" in str(x.type) else "builtin"
    expected = {"fprop": (2, None, 48), "dgrad": (2, None, 64), "wgrad": (48, 64)}
    assert {k: str(t) for k, t in shapes.items()} == {
        k: str(TensorInfo(namespace, s, "bf16")) for k, s in expected.items()
    }


def test_matmul_with_batch_dims_and_another_dtype(function):
    q, k = function(((2, 12, None, 64), "bf16"), ((2, 12, None, 64), "bf16"))
    result = scaled.matmul(q, k, kind="fprop", batch_dims=2, dtype="f32").result
    assert "f32" in str(result.type)
    assert str(result.type).count("?") == 2


def test_quantize_then_gemm(function):
    x, w, bias = function(((None, 64), "f32"), ((48, 64), "f32"), ((48,), "f32"))
    quantized = scaled.quantize(x, MX, MX_COL, role="input")
    assert quantized.result.type.info == ScaledInfo((None, 64), "f32", MX, MX_COL)
    weight = scaled.quantize(w, MX, None, role="weight")
    result = scaled.matmul(x, w, kind="fprop").result.type
    product = scaled.gemm(
        quantized.result, weight.result, kind="fprop", result=result, bias=bias, epilogue="gelu", preactivation=True
    )
    assert product.result.type == product.preactivation.type == result
    assert product.residual is None
    assert product.bias == bias


def test_quantize_with_state(function):
    x, scale, rng = function(((8, 32), "f32"), ((), "f32"), ((2,), "int"))
    delayed = scaled.quantize(x, DELAYED, None, role="input", layer="up", scale=scale, new_amax=True)
    assert delayed.new_amax.type == scale.type
    rows = scaled.quantize(x, NV_ROW, None, role="input", new_amax=True)
    assert "8" in str(rows.new_amax.type)
    noisy = scaled.quantize(x, NV_SR, None, role="grad_output", rng=rng)
    assert noisy.rng == rng
    assert scaled.advance_rng(rng).result.type == rng.type


def test_delayed_state(function):
    x, scale, history = function(((8, 32), "f16"), ((), "f32"), ((16,), "f32"))
    amax = scaled.amax(x).result
    assert amax.type == scale.type
    step = scaled.update_scale(scale, history, amax, DELAYED, margin=2, algorithm="most_recent")
    assert [result.type for result in step.results] == [scale.type, history.type]


def test_layouts(function):
    (x,) = function(((30, 60), "f32"))
    padded = scaled.pad(x, [16, 32]).result
    assert scaled.unpad(padded, (30, 60)).result.type == x.type
    quantized = scaled.quantize(padded, MX, None, role="input").result
    assert quantized.type.info.shape == (32, 64)
    assert scaled.swizzle(quantized).result.type.info.row.layout == "gemm"


def test_transpose_flips_the_usage(function):
    (x,) = function(((8, 32), "f32"))
    rowwise = scaled.quantize(x, FP8, None, role="weight").result
    columnwise = scaled.transpose(rowwise).result
    assert columnwise.type.info == ScaledInfo((8, 32), "f32", None, FP8)
    assert scaled.transpose(columnwise).result.type == rowwise.type
    scaled.dequantize(columnwise, x.type, usage="columnwise")


def test_builders_raise_the_named_constraint(function):
    x, w = function(((4, 8), "f32"), ((6, 9), "f32"))
    for constraint, build in (
        ("matmul_c6", lambda: scaled.matmul(x, w, kind="fprop")),
        ("matmul_c1", lambda: scaled.matmul(x, w, kind="sideways")),
        ("transpose_c2", lambda: scaled.transpose(scaled.quantize(x, MX, None, role="input").result)),
        ("swizzle_c1", lambda: scaled.swizzle(scaled.quantize(x, FP8, None, role="input").result)),
        ("pad_c2", lambda: scaled.pad(x, [0, 1])),
    ):
        with pytest.raises(ConstraintError) as caught:
            build()
        assert caught.value.constraint == constraint


def test_loading_twice_does_nothing_and_contexts_are_apart():
    first, second = make_context(), make_context()
    assert load(first) is first
    scheme = '#scaled.scheme<i8, "1x4", f32, {custom = "a"}>'
    text = f'%0 = "test.source"() : () -> !scaled.tensor<tensor<4xf32>, {scheme}, none>'
    for context in (first, second):
        context.allow_unregistered_dialects = True
        module = ir.Module.parse(text, context)
        assert module.body.operations[0].result.type.info.row.custom == "a"
