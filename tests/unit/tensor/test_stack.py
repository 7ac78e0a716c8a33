"""Stacks of quantized matrices: each matrix keeps its own codes, scales and second level."""

import copy
import io

import pytest
import torch

from steelyard.errors import RecipeError
from steelyard.tensor import Float8Quantizer, MXFP4Tensor, NVFP4Quantizer, NVFP4Tensor, QuantizedStack, QuantizedTensor

COUNT, ROWS, COLUMNS = 3, 150, 136


def make_matrices(make_quantizer, dtype=torch.float32) -> list[QuantizedTensor]:
    # Of different sizes, so that each has scales of its own.
    return [make_quantizer(columnwise=False)(torch.randn(ROWS, COLUMNS, dtype=dtype) * 3**i) for i in range(COUNT)]


def parts_of(tensor: QuantizedTensor) -> list[torch.Tensor]:
    compact = tensor.unpacked() if hasattr(tensor, "unpacked") else tensor
    return [part for name in type(compact).PARTS if (part := getattr(compact, name)) is not None]


def assert_same(stack: QuantizedStack, matrices: list[QuantizedTensor]) -> None:
    for i, matrix in enumerate(matrices):
        assert type(stack[i]) is type(matrix)
        assert all(map(torch.equal, parts_of(stack[i]), parts_of(matrix)))
    assert torch.equal(stack.dequantize(), torch.stack([matrix.dequantize() for matrix in matrices]))


def test_a_stack_holds_its_matrices(make_quantizer):
    matrices = make_matrices(make_quantizer, torch.bfloat16)
    stack = QuantizedStack(matrices)
    assert (stack.shape, stack.dtype, stack.dim()) == ((COUNT, ROWS, COLUMNS), torch.bfloat16, 3)
    assert_same(stack, matrices)
    assert torch.equal(stack + 1, stack.dequantize() + 1)
    for same in (stack.detach(), stack.clone(), copy.deepcopy(stack), stack.packed(), stack.packed().unpacked()):
        assert type(same) is QuantizedStack
        assert_same(same, matrices)
    wide = stack.to(torch.float32)
    assert (type(wide), wide.dtype) == (QuantizedStack, torch.float32)
    assert torch.equal(wide.dequantize(), torch.stack([matrix.dequantize(dtype=torch.float32) for matrix in matrices]))


def test_a_transposed_stack_presents_the_transposes(make_quantizer):
    matrices = make_matrices(make_quantizer)
    stack = QuantizedStack(matrices, transposed=True)
    assert stack.shape == (COUNT, COLUMNS, ROWS)
    assert torch.equal(stack.dequantize(), torch.stack([matrix.dequantize().T for matrix in matrices]))
    assert torch.equal(stack[1].dequantize(), matrices[1].dequantize().T)
    assert_same(stack.transpose(1, 2), matrices)
    assert_same(stack.permute(0, 2, 1), matrices)


@pytest.mark.parametrize("transposed", [False, True])
def test_parameters_are_saved_and_loaded(make_quantizer, transposed):
    matrices = make_matrices(make_quantizer)
    stack = QuantizedStack(matrices, transposed=transposed)
    for each in (stack, stack.packed()):
        parameter = torch.nn.Parameter(each, requires_grad=False)
        assert isinstance(parameter, torch.nn.Parameter)
        file = io.BytesIO()
        torch.save({"weight": parameter}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)["weight"]
        assert isinstance(loaded, torch.nn.Parameter)
        assert not loaded.is_packed
        assert_same(loaded.transpose(1, 2) if transposed else loaded, matrices)


def test_what_lies_one_after_the_other_is_not_copied():
    codes, scales = torch.randint(256, (4, 64, 32), dtype=torch.uint8), torch.full((4, 64, 2), 120, dtype=torch.uint8)
    matrices = [MXFP4Tensor(rowwise_data=codes[i], rowwise_scale_inv=scales[i]) for i in range(4)]
    stack = QuantizedStack(matrices)
    assert (stack._codes.data_ptr(), stack._scales.data_ptr()) == (codes.data_ptr(), scales.data_ptr())
    assert stack[2]._rowwise_data.data_ptr() == codes[2].data_ptr()
    assert_same(stack, matrices)
    # In another order it is.
    assert_same(QuantizedStack(matrices[::-1]), matrices[::-1])


def test_each_matrix_has_the_second_level_that_it_came_with():
    levels = torch.tensor([3.2871e-05, 1.7, 0.0123])
    codes, scales = torch.randint(256, (3, 32, 32), dtype=torch.uint8), torch.full((3, 32, 4), 56, dtype=torch.uint8)
    stack = QuantizedStack(
        [NVFP4Tensor(rowwise_data=codes[i], rowwise_scale_inv=scales[i], tensor_scale_inv=levels[i]) for i in range(3)]
    )
    assert torch.equal(stack.packed().unpacked()._amax, levels)
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = torch.cat([values, -values]).double()
    digits = torch.stack([codes & 15, codes >> 4], -1).reshape(3, 32, 64).long()
    # A block scale of 56 is 1.
    exact = values[digits] * levels.double()[:, None, None]
    torch.testing.assert_close(stack.dequantize().double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("packed", [False, True])
def test_writes_quantize_each_matrix(make_quantizer, packed):
    stack = QuantizedStack(make_matrices(make_quantizer))
    stack = stack.packed() if packed else stack
    values = torch.randn(COUNT, ROWS, COLUMNS)
    expected = [stack[i].copy_(values[i]).dequantize() for i in range(COUNT)]
    stack.copy_(values)
    assert torch.equal(stack.dequantize(), torch.stack(expected))
    other = QuantizedStack(make_matrices(make_quantizer))
    stack.copy_(other)
    assert torch.equal(stack.dequantize(), other.dequantize())
    stack.zero_()
    assert not stack.dequantize().any()


def test_modules_convert_stacks(make_quantizer):
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(QuantizedStack(make_matrices(make_quantizer)), requires_grad=False)
    parts = [part.clone() for part in parts_of(module.weight)]
    module.to(torch.bfloat16).half().float()
    assert (type(module.weight).__name__, module.weight.dtype) == ("QuantizedStack", torch.float32)
    assert all(map(torch.equal, parts_of(module.weight), parts))


def test_unequal_matrices_are_refused():
    quantizer = NVFP4Quantizer(columnwise=False)
    one, other = quantizer(torch.randn(32, 32)), quantizer(torch.randn(32, 64))
    with pytest.raises(RecipeError, match="must have one shape, dtype, device and format"):
        QuantizedStack([one, other])
    with pytest.raises(RecipeError, match="must have one shape, dtype, device and format"):
        QuantizedStack([one, NVFP4Quantizer(columnwise=False, tensor_scale_inv=1.0)(torch.randn(32, 32))])
    with pytest.raises(RecipeError, match="quantized matrices with a rowwise copy"):
        QuantizedStack([one, torch.randn(32, 32)])
    with pytest.raises(RecipeError, match="a list of quantized matrices"):
        QuantizedStack([])


def test_matrices_with_delayed_scales_keep_their_own():
    scales = (2.0, 0.5, 16.0)
    matrices = [
        Float8Quantizer(torch.tensor(scale), torch.zeros(()), torch.float8_e4m3fn, columnwise=False)(torch.randn(4, 8))
        for scale in scales
    ]
    stack = QuantizedStack(matrices)
    assert [stack[i]._quantizer.scale.item() for i in range(3)] == list(scales)
    stack.copy_(torch.full((3, 4, 8), 100.0))
    # 200 and 50 are rounded to 192 and 48, and 1600 saturates at 448.
    assert stack.dequantize()[:, 0, 0].tolist() == [96.0, 96.0, 28.0]
