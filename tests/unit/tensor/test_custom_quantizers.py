"""The format in the documentation, and the library's example, against values computed by hand."""

import re
import runpy
from pathlib import Path

import pytest
import torch

from steelyard import reference
from steelyard.errors import RecipeError
from steelyard.formats.schemes import Scheme
from steelyard.recipes import CustomRecipe
from steelyard.tensor import QuantizedTensorStorage, Quantizer, prepare_for_saving, restore_from_saved
from steelyard.tensor.reference import (
    CurrentScalingQuantizerRef,
    CurrentScalingTensorRef,
    current_scaling_ref_quantizer_factory,
)

ROOT = Path(__file__).parents[3]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.fixture(scope="module")
def page() -> dict:
    """The names that the code blocks of the page define when run in order."""
    text = (ROOT / "docs" / "custom-quantizers.md").read_text()
    names = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "docs/custom-quantizers.md", "exec"), names)
    return names


def test_the_page_quantizes_as_by_hand(page):
    # Rows scaled by 127/127, 127/254 and, for zeros, 1; 3/2 and 5/2 are ties, to even.
    quantized = page["Int8RowQuantizer"]()(torch.tensor([[127.0, -3, 0.4], [254, 3, -5], [0, 0, 0]]))
    assert isinstance(quantized, QuantizedTensorStorage)
    assert quantized.codes.tolist() == [[127, -3, 0], [127, 2, -2], [0, 0, 0]]
    assert quantized.scale_inv.tolist() == [[1.0], [2.0], [1.0]]
    assert quantized.dequantize().tolist() == [[127.0, -3, 0], [254, 4, -4], [0, 0, 0]]
    assert quantized.dequantize(dtype=torch.bfloat16).dtype == torch.bfloat16


def test_the_page_multiplies_as_by_hand(page):
    quantizer = page["Int8RowQuantizer"]()
    x = quantizer(torch.tensor([[127.0, 1.0], [254.0, 4.0]]))
    w = quantizer(torch.tensor([[127.0, 3.0]]))
    bias = torch.tensor([1.0])
    # 127*127 + 1*3 + 1; row 2 has codes (127, 2) and scale 2.
    assert quantizer.qgemm(x, w, bias=bias).tolist() == [[16133.0], [2 * (16129 + 6) + 1.0]]
    dy = quantizer(torch.tensor([[127.0], [127.0]]))
    assert quantizer.qgemm(dy, w, kind="dgrad").tolist() == [[16129.0, 381.0]] * 2
    assert quantizer.qgemm(dy, x, kind="wgrad").tolist() == [[127.0 * 127 + 127 * 254, 127.0 + 508]]
    with pytest.raises(RecipeError, match="kind must be one of"):
        quantizer.qgemm(dy, x, kind="gemm")


def test_the_page_gets_the_rest_from_the_base_classes(page):
    quantizer = page["Int8RowQuantizer"]()
    x = torch.tensor([[127.0, 1.0]])
    quantized = quantizer(x)
    assert quantizer == page["Int8RowQuantizer"]()
    assert quantizer.copy() == quantizer
    assert quantized != quantizer(x)
    restored = restore_from_saved(*prepare_for_saving(None, quantized, x))
    assert restored[1].dequantize().tolist() == [[127.0, 1.0]]
    assert quantizer.update_quantized(2 * x, quantized, noop_flag=torch.ones(1)).dequantize().tolist() == x.tolist()
    assert quantizer.update_quantized(2 * x, quantized).dequantize().tolist() == [[254.0, 2.0]]
    assert quantizer.make_empty((2, 3)).dequantize().tolist() == [[0.0] * 3] * 2
    quantized.clear()
    assert quantized.codes is None
    with pytest.raises(RecipeError, match="takes float32, bfloat16 or float16"):
        quantizer(torch.ones(2, 2, dtype=torch.int32))


def test_the_page_makes_a_recipe(page):
    recipe = page["recipe"]
    assert isinstance(recipe, CustomRecipe)
    row, col = recipe.schemes("weight")
    assert row.custom == col.custom == "Int8RowQuantizer"
    assert recipe.schemes("grad_output") == (None, None)


def test_the_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples" / "custom_quantizer.py"), run_name="__main__")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["Int8RowQuantizer", "CurrentScalingQuantizerRef"]
    assert all(0.0 < float(value.rstrip("%")) < 10.0 for row in rows for value in row[1:])


@pytest.mark.parametrize(
    ("role", "dtype"), [("input", E4M3), ("weight", E4M3), ("output", E5M2), ("grad_output", E5M2)]
)
def test_factory_roles(role, dtype):
    quantizer = current_scaling_ref_quantizer_factory(role)
    assert type(quantizer) is CurrentScalingQuantizerRef
    assert quantizer.fp8_dtype == dtype
    assert quantizer(torch.ones(2, 2)).data.dtype == dtype


def test_factory_refuses_other_roles_and_serves_a_recipe():
    with pytest.raises(RecipeError, match="role must be one of input, weight, output, grad_output, got 'bias'"):
        current_scaling_ref_quantizer_factory("bias")
    row, _ = CustomRecipe(current_scaling_ref_quantizer_factory).schemes("input")
    assert row.custom == "CurrentScalingQuantizerRef"


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("pow_2_scales", [False, True])
@pytest.mark.parametrize("eps", [0.0, 10.0])
def test_template_leaves_the_bytes_of_the_reference(dtype, pow_2_scales, eps):
    element = "f8E4M3FN" if dtype == E4M3 else "f8E5M2"
    scheme = Scheme(element, "tensor", "f32", power_of_two=pow_2_scales, epsilon=eps)
    quantizer = CurrentScalingQuantizerRef(dtype, pow_2_scales=pow_2_scales, eps=eps)
    tensors = [torch.randn(3, 4, 5), torch.zeros(2, 2), torch.empty(0, 3), torch.tensor([[1e-45, 3e-44]])]
    tensors += [torch.tensor([[torch.inf, 1.0]]), torch.randn(8, 8).bfloat16()]
    for x in tensors:
        row, col = reference.quantize(x, scheme, scheme)
        quantized = quantizer(x)
        assert type(quantized) is CurrentScalingTensorRef
        assert torch.equal(quantized.data.view(torch.uint8), row.codes)
        assert torch.equal(quantized.data_t.view(torch.uint8), col.codes)
        assert quantized.scale_inv == row.scales
        assert torch.equal(quantized.dequantize(), reference.dequantize(row, x.dtype).reshape(x.shape))


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_template_multiplies(kind):
    torch.manual_seed(0)
    quantizer = CurrentScalingQuantizerRef(E4M3)
    x, w, dy = (quantizer(torch.randn(shape)) for shape in ((24, 40), (32, 40), (24, 32)))
    dx, dw, ddy = (each.dequantize(dtype=torch.float64) for each in (x, w, dy))
    operands, expected = {
        "fprop": ((x, w), dx @ dw.T),
        "dgrad": ((dy, w), ddy @ dw),
        "wgrad": ((dy, x), ddy.T @ dx),
    }[kind]
    bias, accumulate = torch.randn(expected.shape[1]), torch.randn(expected.shape)
    found = quantizer.qgemm(*operands, kind=kind, bias=bias, accumulate=accumulate)
    torch.testing.assert_close(found.double(), expected + bias + accumulate, rtol=1e-5, atol=1e-4)


def test_template_usages():
    quantizer = CurrentScalingQuantizerRef(E4M3, columnwise=False)
    x = quantizer(torch.tensor([[1.0, 2.0]]))
    assert x.get_usages() == {"rowwise": True, "columnwise": False}
    with pytest.raises(RecipeError, match="must have its columnwise codes"):
        quantizer.qgemm(x, x, kind="wgrad")
    x.update_usage(rowwise_usage=False, columnwise_usage=True)
    assert x.get_usages() == {"rowwise": False, "columnwise": True}
    assert x.dequantize().tolist() == [[1.0, 2.0]]


def test_a_quantizer_without_quantize_impl_cannot_be_made():
    class Incomplete(Quantizer):
        pass

    with pytest.raises(TypeError, match="quantize_impl"):
        Incomplete()
