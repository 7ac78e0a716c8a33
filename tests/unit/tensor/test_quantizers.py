"""Quantizers: the bytes they write, their options, usages and equality."""

import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steelyard import recipes, reference
from steelyard.errors import RecipeError
from steelyard.tensor import (
    Float8BlockQuantizer,
    Float8BlockwiseQTensor,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8RowQuantizer,
    Float8RowTensor,
    Float8Tensor,
    Float8TensorStorage,
    MXFP4Quantizer,
    MXFP4Tensor,
    MXFP8Quantizer,
    MXFP8Tensor,
    NVFP4Quantizer,
    NVFP4Tensor,
    QuantizedTensor,
)

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROW_SCALED = recipes.NVFP4BlockScaling(row_scaled=True, rht=False, weight_tiles=False, stochastic_rounding=False)


def test_current_scaling_bytes():
    # amax 4, scale 112: 112, 224, 336 (a tie, to 320) and -448.
    quantized = Float8CurrentScalingQuantizer(fp8_dtype=E4M3)(torch.tensor([[1.0, 2.0], [3.0, -4.0]]))
    assert type(quantized) is Float8Tensor
    assert quantized._data.tolist() == [[0x6E, 0x76], [0x7A, 0xFE]]
    assert quantized._transpose.tolist() == [[0x6E, 0x7A], [0x76, 0xFE]]
    assert quantized._scale_inv == torch.tensor(1 / 112)
    assert quantized.dtype == torch.float32
    assert torch.equal(quantized.dequantize(), torch.tensor([[112.0, 224], [320, -448]]) * torch.tensor(1 / 112))


def test_delayed_scaling_uses_the_scale_it_is_given_and_records_the_amax():
    scale, amax = torch.tensor([2.0]), torch.zeros(1)
    quantizer = Float8Quantizer(scale=scale, amax=amax, fp8_dtype=E4M3)
    quantized = quantizer(torch.tensor([[1.0, -1000.0]]))
    assert quantized._data.tolist() == [[0x40, 0xFE]]
    assert quantized._scale_inv == 0.5
    assert amax.tolist() == [1000.0]
    scale.fill_(4.0)
    assert quantizer(torch.tensor([[1.0, 0.5]]))._data.tolist() == [[0x48, 0x40]]
    assert amax.tolist() == [1000.0]


def test_row_scaling_bytes():
    # Rows with amax 2 and 4: scales 224 and 112; 1 * 224 and 3 * 112 = 336, a tie, to 320.
    quantized = Float8RowQuantizer()(torch.tensor([[1.0, 2.0], [3.0, -4.0]]))
    assert type(quantized) is Float8RowTensor
    assert quantized._rowwise_data.tolist() == [[0x76, 0x7E], [0x7A, 0xFE]]
    assert torch.equal(quantized._rowwise_scale_inv, torch.tensor([[1 / 224], [1 / 112]]))
    # Columns with amax 3 and 4: 1 * 448 / 3 = 149.3, to 144; 2 * 112 = 224.
    assert quantized._columnwise_data.tolist() == [[0x71, 0x7E], [0x76, 0xFE]]
    assert torch.equal(quantized._columnwise_scale_inv, 1 / (torch.tensor([[448.0]]) / torch.tensor([[3.0], [4.0]])))
    rounded = Float8RowQuantizer(E5M2, force_pow_2_scales=True, columnwise=False)(torch.tensor([[3.0, -1.5]]))
    # 57344 / 3 rounded down is 2^14: 3 * 2^14 and -1.5 * 2^14.
    assert (rounded._rowwise_data.tolist(), rounded._rowwise_scale_inv.item()) == ([[0x7A, 0xF6]], 2.0**-14)


def test_block_scaling_bytes():
    # amax 3: 448 / 3 rounded down to a power of two is 128.
    quantized = Float8BlockQuantizer(fp8_dtype=E4M3, block_scaling_dim=1)(torch.tensor([[1.0, 3.0]]))
    assert type(quantized) is Float8BlockwiseQTensor
    assert quantized._rowwise_data.tolist() == [[0x70, 0x7C]]
    assert quantized._rowwise_scale_inv.tolist() == [[1 / 128]]
    # Each column is a block: 1 is scaled by 256, 3 by 128.
    assert quantized._columnwise_data.tolist() == [[0x78], [0x7C]]
    assert quantized._columnwise_scale_inv.tolist() == [[1 / 256], [1 / 128]]


def test_mxfp8_bytes():
    quantized = MXFP8Quantizer(fp8_dtype=E4M3)(torch.tensor([[1.0, 224.0]]))
    assert type(quantized) is MXFP8Tensor
    assert quantized._rowwise_data.tolist() == [[0x40, 0x7E]]
    assert quantized._rowwise_scale_inv.tolist() == [[126]]
    # 1/448 lies above 2^-9, so its scale is 2^-8; not transposed.
    assert quantized._columnwise_data.tolist() == [[0x78, 0x7E]]
    assert quantized._columnwise_scale_inv.tolist() == [[119, 126]]


@pytest.mark.parametrize(
    ("rule", "scale", "codes"),
    [
        # 7 / 6 is above 1: the scale is 2, and 7 / 2 = 3.5, a tie, becomes 4.
        ("rceil", 128, 0x06),
        ("ceil", 128, 0x06),
        # The exponent of 7 is that of 6: the scale is 1, and 7 saturates.
        ("floor", 127, 0x07),
        # 7 has the mantissa 1.75, which rounds up to the next power of two.
        ("even", 128, 0x06),
    ],
)
def test_mxfp4_bytes(rule, scale, codes):
    quantized = MXFP4Quantizer(scale_rule=rule)(torch.tensor([[7.0, -1.0]]))
    assert type(quantized) is MXFP4Tensor
    # -1 is -0.5 (code 9) under a scale of 2, and -1 (code 10) under 1.
    assert quantized._rowwise_data.tolist() == [[codes | (0x90 if scale == 128 else 0xA0)]]
    assert quantized._rowwise_scale_inv.tolist() == [[scale]]
    # A column of one value: 1 has the exponent 0, that of 6 is 2; under rceil 1/6 is above 2^-3.
    assert quantized._columnwise_scale_inv[1].tolist() == [125]
    assert quantized._columnwise_data[1].tolist() == [0x0E]


def test_nvfp4_in_blocks_of_32():
    values = [6.0] * 16 + [1.5] * 16 + [-0.75, 0.0]
    quantized = NVFP4Quantizer(block_size=32)(torch.tensor([values]))
    # The amax, 6, makes the second level 1/448, the first block's scale 448 and that of a block of 0.75 56.
    assert quantized._rowwise_scale_inv.tolist() == [[0x7E, 0x66]]
    assert quantized._rowwise_data.tolist() == [[0x77] * 8 + [0x33] * 8 + [0x0F]]
    assert quantized._amax_rowwise == 6
    assert quantized.dequantize().tolist() == [values]
    for option in ("with_rht", "with_2d_quantization", "stochastic_rounding", "row_scaled"):
        with pytest.raises(RecipeError, match=rf"NVFP4Quantizer\.{option} needs block_size=16, got 32"):
            NVFP4Quantizer(block_size=32, **{option: True})
    with pytest.raises(RecipeError, match="block_size must be 16 or 32, got 64"):
        NVFP4Quantizer(block_size=64)


@pytest.mark.parametrize(("name", "level"), [("tensor_scale_inv", 0.5), ("tensor_scale", 2.0)])
def test_nvfp4_with_a_second_level_that_is_given(name, level):
    values = torch.zeros(1, 48)
    values[0, 0], values[0, 16], values[0, 17], values[0, 32] = 1.0, 4.5, -2.25, 2500.0
    quantized = NVFP4Quantizer(**{name: level}, columnwise=False)(values)
    # 1 / 0.5 / 6 = 0.333 is 0.34375 in E4M3, where 1 is 5.8; 4.5 / 0.5 / 6 = 1.5; 2500 / 0.5 / 6 is above 448.
    assert quantized._rowwise_scale_inv.tolist() == [[0x2B, 0x3C, 0x7E]]
    assert quantized._rowwise_data[0, ::8].tolist() == [0x07, 0xD7, 0x07]
    assert getattr(quantized, f"_{name}") == level
    assert quantized.dequantize()[0, [0, 16, 17, 32]].tolist() == [6 * 0.34375 * 0.5, 4.5, -2.25, 6 * 448 * 0.5]
    quantized.quantize_(values / 8)
    assert getattr(quantized, f"_{name}") == level
    for option in ("with_rht", "stochastic_rounding", "row_scaled"):
        for value in (level, 0.0):
            with pytest.raises(RecipeError, match=f"{name} and {option} exclude each other"):
                NVFP4Quantizer(**{name: value}, **{option: True})
    with pytest.raises(RecipeError, match="tensor_scale_inv and tensor_scale exclude each other"):
        NVFP4Quantizer(tensor_scale_inv=0.5, tensor_scale=2.0)


def test_nvfp4_bytes():
    # amax 6 makes every scale 1: the codes are those of the values.
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0, 0.2]
    quantized = NVFP4Quantizer()(torch.tensor([values]))
    assert type(quantized) is NVFP4Tensor
    assert quantized._rowwise_data.tolist() == [[0x10, 0x32, 0x54, 0x76, 0xA9, 0xCB, 0xED, 0x0F]]
    assert quantized._rowwise_scale_inv.tolist() == [[0x7E]]
    assert quantized._amax_rowwise == 6
    assert quantized._columnwise_data.shape == (16, 1)
    assert quantized._columnwise_scale_inv.shape == (16, 1)


def expected_fields(tensor, copy) -> dict[str, torch.Tensor]:
    names = tensor.COLUMNWISE if copy.columnwise else tensor.ROWWISE
    parts = zip(names, (copy.codes, copy.scales, copy.amax), strict=True)
    return {name: part for name, part in parts if name is not None}


shapes = st.lists(st.integers(0, 3), max_size=1).flatmap(
    lambda leading: st.tuples(st.integers(1, 40), st.integers(1, 40)).map(lambda matrix: (*leading, *matrix))
)


@given(
    shape=shapes, dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), usage=st.sampled_from("rcb")
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fields_hold_the_bytes_of_the_reference(make_quantizer, shape, dtype, usage):
    x = torch.randn(shape).to(dtype)
    quantizer = make_quantizer(rowwise=usage in "rb", columnwise=usage in "cb")
    quantized = quantizer.quantize(x)
    scales = {"delayed": torch.tensor(2.5), "static": torch.tensor(1 / 12), "divisor": torch.tensor(12.0)}
    scale = scales.get(quantizer.row_scheme.source)
    copies = reference.quantize(x, *quantizer.schemes(), scale=scale)
    assert quantized.get_usages() == {"rowwise": usage in "rb", "columnwise": usage in "cb"}
    for copy in copies:
        if copy is not None:
            for name, part in expected_fields(quantized, copy).items():
                field = getattr(quantized, name)
                assert torch.equal(field.reshape(part.shape), part), name
    first = copies[0] or copies[1]
    assert torch.equal(quantized.dequantize(), reference.dequantize(first, dtype).reshape(shape))
    assert (quantized.shape, quantized.dtype) == (torch.Size(shape), dtype)


@pytest.mark.parametrize(
    ("recipe", "role", "quantizer"),
    [
        ("fp8-current", "grad_output", Float8CurrentScalingQuantizer(E5M2)),
        ("fp8-block", "input", Float8BlockQuantizer(E4M3, block_scaling_dim=1)),
        ("fp8-block", "weight", Float8BlockQuantizer(E4M3)),
        ("fp8-row", "weight", Float8RowQuantizer()),
        ("fp8-row", "grad_output", Float8RowQuantizer(E5M2)),
        ("mxfp8", "input", MXFP8Quantizer(E4M3)),
        ("mxfp4", "weight", MXFP4Quantizer()),
        ("mxfp4/mxfp8", "input", MXFP8Quantizer(E4M3)),
        ("nvfp4", "input", NVFP4Quantizer(with_rht=True)),
        ("nvfp4", "weight", NVFP4Quantizer(with_2d_quantization=True)),
        ("nvfp4", "grad_output", NVFP4Quantizer(with_rht=True, stochastic_rounding=True)),
        (ROW_SCALED, "input", NVFP4Quantizer(row_scaled=True)),
        (replace(ROW_SCALED, row_scaled=False, four_over_six="all"), "weight", NVFP4Quantizer(four_over_six="mae")),
    ],
)
def test_quantizers_and_recipes_name_the_same_schemes(recipe, role, quantizer):
    assert quantizer.schemes() == recipes.get(recipe).schemes(role)
    custom = recipes.CustomRecipe(lambda _: quantizer)
    assert custom.schemes(role) == quantizer.schemes()


def test_usages():
    quantizer = MXFP8Quantizer(E4M3, columnwise=False)
    x = torch.randn(4, 4)
    assert quantizer(x)._columnwise_data is None
    quantizer.set_usage(rowwise=False, columnwise=True)
    assert (quantizer.rowwise_usage, quantizer.columnwise_usage) == (False, True)
    assert quantizer(x)._rowwise_data is None
    assert quantizer.scheme("rowwise") is None
    assert quantizer.scheme("columnwise").block == "32x1"
    quantizer.set_usage(columnwise=False)
    with pytest.raises(RecipeError, match="must make a copy"):
        quantizer(x)


def test_set_usage_does_not_change_tensors_that_were_made():
    quantizer = MXFP8Quantizer(E4M3)
    quantized = quantizer(torch.ones(2, 2))
    quantizer.set_usage(columnwise=False)
    quantized.quantize_(torch.full((2, 2), 2.0))
    other = quantized.detach()
    other.update_usage(rowwise_usage=False)
    assert torch.equal(other.dequantize(), torch.full((2, 2), 2.0))


def test_update_quantized_writes_the_same_memory(quantizer):
    x, y = torch.randn(32, 48), torch.randn(32, 48) * 3
    quantized = quantizer(x)
    pointers = {name: getattr(quantized, name).data_ptr() for name in quantized.PARTS}
    assert quantizer.update_quantized(y, quantized) is quantized
    fresh = quantizer(y)
    for name, pointer in pointers.items():
        assert getattr(quantized, name).data_ptr() == pointer
        assert torch.equal(getattr(quantized, name), getattr(fresh, name))


def test_update_quantized_of_a_view_goes_through_the_whole():
    quantizer = Float8CurrentScalingQuantizer(E4M3)
    x, y = torch.randn(8, 8), torch.randn(4, 8) * 100
    quantized = quantizer(x)
    expected = quantized.dequantize()
    expected[4:] = y
    quantizer.update_quantized(y, quantized[4:])
    assert torch.equal(quantized.dequantize(), quantizer(expected).dequantize())


def test_every_update_counts_as_a_write(quantizer):
    quantized = quantizer(torch.randn(32, 48))
    for count, update in enumerate((quantizer.update_quantized, lambda x, t: t.quantize_(x)), start=1):
        update(torch.randn(32, 48), quantized)
        assert quantized._version == count


def test_noop_flag(quantizer):
    quantized = quantizer(torch.ones(4, 4))
    quantizer.update_quantized(torch.zeros(4, 4), quantized, noop_flag=torch.ones(1))
    assert torch.equal(quantized.dequantize().sign(), torch.ones(4, 4))
    quantized.quantize_(torch.zeros(4, 4), noop_flag=torch.ones(1))
    assert torch.equal(quantized.dequantize().sign(), torch.ones(4, 4))
    quantizer.update_quantized(torch.zeros(4, 4), quantized, noop_flag=torch.zeros(1))
    assert torch.equal(quantized.dequantize(), torch.zeros(4, 4))


def test_update_quantized_refuses_another_format_and_shape():
    quantized = MXFP8Quantizer(E4M3)(torch.ones(4, 4))
    with pytest.raises(RecipeError, match="made by a quantizer like"):
        MXFP8Quantizer(E5M2).update_quantized(torch.ones(4, 4), quantized)
    with pytest.raises(RecipeError, match=r"the shape of dst, \(4, 4\), got \(2, 4\)"):
        MXFP8Quantizer(E4M3).update_quantized(torch.ones(2, 4), quantized)


def test_out_and_make_empty(quantizer):
    x = torch.randn(3, 5, 32)
    out = quantizer.make_empty((3, 5, 32), dtype=torch.bfloat16, requires_grad=True)
    assert (out.shape, out.dtype, out.requires_grad) == ((3, 5, 32), torch.bfloat16, True)
    assert quantizer.quantize(x, out=out) is out
    assert torch.equal(out.dequantize(dtype=torch.float32), quantizer(x).dequantize())


def test_internal_quantizers_make_storages():
    quantizer = Float8CurrentScalingQuantizer(E4M3, internal=True)
    storage = quantizer(torch.ones(2, 3, requires_grad=True))
    assert type(storage) is Float8TensorStorage
    assert not isinstance(storage, torch.Tensor | QuantizedTensor)
    assert (storage.shape, storage.dtype, storage.size(-1), storage.dim()) == ((2, 3), torch.float32, 3, 2)
    assert torch.equal(storage.dequantize(), torch.ones(2, 3))
    storage.quantize_(torch.full((2, 3), 3.0))
    assert torch.equal(storage.dequantize(), torch.full((2, 3), 3.0))


def test_dtype_is_presented():
    quantized = MXFP8Quantizer(E4M3).quantize(torch.ones(2, 2), dtype=torch.bfloat16)
    assert quantized.dtype == torch.bfloat16
    assert quantized.dequantize().dtype == torch.bfloat16
    assert quantized.dequantize(dtype=torch.float64).dtype == torch.float64


def test_stateless_quantizers_are_equal_by_value(make_quantizer):
    one, other = make_quantizer(), make_quantizer()
    if isinstance(one, Float8Quantizer):
        assert one != other
        assert one == one
        return
    assert one == other
    assert hash(one) == hash(other)
    assert one == one.copy() == pickle.loads(pickle.dumps(one))
    other.set_usage(columnwise=False)
    assert one != other
    assert one != replace(one, optimize_for_gemm=True)


def test_copies_are_independent_but_share_delayed_state():
    quantizer = Float8Quantizer(torch.tensor(1.0), torch.zeros(()), E4M3)
    twin = quantizer.copy()
    twin.set_usage(columnwise=False)
    assert quantizer.columnwise
    twin(torch.full((1, 1), 7.0))
    assert quantizer.amax == 7


def test_is_quantizable():
    quantizer = NVFP4Quantizer()
    assert quantizer.is_quantizable(torch.ones(3))
    assert quantizer.is_quantizable(torch.tensor(1.0))
    assert not quantizer.is_quantizable(torch.ones(3, dtype=torch.float64))
    with pytest.raises(
        RecipeError, match=r"takes float32, bfloat16 or float16 tensors, got torch\.int64 of shape \(3,\)"
    ):
        quantizer(torch.ones(3, dtype=torch.int64))


def test_quantizing_a_quantized_tensor_reads_its_values():
    quantized = Float8CurrentScalingQuantizer(E4M3)(torch.randn(4, 32))
    again = MXFP8Quantizer(E5M2)(quantized)
    assert torch.equal(again.dequantize(), MXFP8Quantizer(E5M2)(quantized.dequantize()).dequantize())


def test_stochastic_rounding_repeats_with_the_seed_and_picks_neighbours():
    quantizer = NVFP4Quantizer(stochastic_rounding=True)
    # A block with amax 6 has scale 1, so 2.25 lies a quarter of the way from 2 to 3.
    x = torch.full((64, 16), 2.25)
    x[:, 0] = 6
    torch.manual_seed(3)
    first = quantizer(x)
    second = quantizer(x)
    torch.manual_seed(3)
    assert torch.equal(first.dequantize(), quantizer(x).dequantize())
    assert not torch.equal(first.dequantize(), second.dequantize())
    draws = torch.stack([quantizer(x).dequantize()[:, 1:] for _ in range(20)])
    assert set(draws.unique().tolist()) == {2.0, 3.0}
    assert abs(draws.double().mean().item() - 2.25) < 0.02


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_qgemm_of_each_kind(kind):
    x, w, dy = torch.randn(24, 40), torch.randn(32, 40), torch.randn(24, 32)
    quantizer = Float8CurrentScalingQuantizer(E4M3)
    qx, qw, qdy = quantizer(x), quantizer(w), quantizer(dy)
    dx, dw, ddy = (each.dequantize(dtype=torch.float64) for each in (qx, qw, qdy))
    operands, expected = {
        "fprop": ((qx, qw), dx @ dw.T),
        "dgrad": ((qdy, qw), ddy @ dw),
        "wgrad": ((qdy, qx), ddy.T @ dx),
    }[kind]
    bias, accumulate = torch.randn(expected.shape[1]), torch.randn(expected.shape)
    found = quantizer.qgemm(*operands, kind=kind, bias=bias, accumulate=accumulate)
    torch.testing.assert_close(found.double(), expected + bias + accumulate, rtol=1e-5, atol=1e-4)


MIXED = {
    "mxfp8 x mxfp4": (MXFP8Quantizer(), MXFP4Quantizer()),
    "fp8 x nvfp4": (Float8CurrentScalingQuantizer(E4M3), NVFP4Quantizer()),
    "1x128 x mxfp4": (Float8BlockQuantizer(E4M3, block_scaling_dim=1), MXFP4Quantizer()),
    "rows x nvfp4 in 32": (Float8RowQuantizer(), NVFP4Quantizer(block_size=32)),
    "values x rows": (None, Float8RowQuantizer()),
    "values x nvfp4": (None, NVFP4Quantizer()),
}


@pytest.mark.parametrize("kind", ["fprop", "dgrad"])
@pytest.mark.parametrize("pair", MIXED)
def test_qgemm_of_two_formats_and_of_plain_activations(pair, kind):
    of_input, of_weight = MIXED[pair]
    x, w = torch.randn(2, 12, 40), torch.randn(32, 40)
    left = x if of_input is None else of_input(x)
    # The columnwise copy of a matrix has the values of the rowwise copy of its transpose.
    right = of_weight(w if kind == "fprop" else w.T.contiguous())
    expected = (x if of_input is None else left.dequantize()).reshape(24, 40).double() @ of_weight(
        w
    ).dequantize().T.double()
    found = of_weight.qgemm(left, right, kind=kind)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def test_qgemm_refuses_what_it_cannot_multiply():
    quantizer = MXFP8Quantizer(E4M3, columnwise=False)
    x, w = quantizer(torch.randn(8, 64)), quantizer(torch.randn(8, 64))
    with pytest.raises(RecipeError, match="dgrad needs the columnwise copy"):
        quantizer.qgemm(x, w, kind="dgrad")
    with pytest.raises(RecipeError, match="kind must be one of fprop, dgrad, wgrad, got 'forward'"):
        quantizer.qgemm(x, w, kind="forward")
    with pytest.raises(RecipeError, match="must be quantized along its last dim"):
        quantizer.qgemm(x.view(16, 32), w.view(16, 32))
    with pytest.raises(RecipeError, match="operand must be a SchemeStorage, got Tensor; quantize it first"):
        quantizer.qgemm(torch.randn(8, 64), MXFP8Quantizer()(torch.randn(8, 64)), kind="wgrad")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Float8CurrentScalingQuantizer(torch.float16), "fp8_dtype must be"),
        (
            lambda: Float8CurrentScalingQuantizer(E4M3, amax_epsilon=-1.0),
            r"Float8CurrentScalingQuantizer\.amax_epsilon must be 0 or a finite, positive number .*, got -1.0",
        ),
        (lambda: Float8CurrentScalingQuantizer(E4M3, amax_epsilon=1e300), "amax_epsilon must be 0 or .* got 1e[+]300"),
        (lambda: Float8BlockQuantizer(E4M3, amax_epsilon=1e-60), r"Quantizer\.amax_epsilon must be .* got 1e-60"),
        (
            lambda: Float8CurrentScalingQuantizer(E4M3, force_pow_2_scales=2),
            r"Float8CurrentScalingQuantizer\.force_pow_2_scales must be True or False, got 2",
        ),
        (lambda: NVFP4Quantizer(with_rht="yes"), r"NVFP4Quantizer\.with_rht must be True or False, got 'yes'"),
        (lambda: Float8Quantizer(1.0, torch.zeros(1), E4M3), r"Float8Quantizer\.scale must be a float32 tensor"),
        (lambda: Float8BlockQuantizer(E4M3, block_scaling_dim=3), "block_scaling_dim must be 1 or 2, got 3"),
        (lambda: MXFP8Quantizer(E4M3, scale_rule="up"), r"MXFP8Quantizer\.scale_rule must be one of .*'up'"),
        (lambda: NVFP4Quantizer(four_over_six="l1"), "four_over_six must be None, mae or mse, got 'l1'"),
        (lambda: NVFP4Quantizer(row_scaled=True, with_rht=True), "row_scaled and with_rht exclude each other"),
        (lambda: NVFP4Quantizer(four_over_six="mae", stochastic_rounding=True), "exclude each other"),
    ],
)
def test_wrong_options_are_refused_at_once(make, message):
    with pytest.raises(ValueError, match=message):
        make()
