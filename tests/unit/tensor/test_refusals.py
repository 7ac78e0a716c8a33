"""What the tensor classes refuse, with errors that say what must hold."""

import pytest
import torch

from steelyard.errors import ConstraintError, RecipeError
from steelyard.tensor import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    Quantizer,
    prepare_for_saving,
    restore_from_saved,
)
from steelyard.tensor.reference import CurrentScalingQuantizerRef


def _freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch._efficientzerotensor((4, 32)),
        lambda: _freed(torch.randn(4, 32)),
        lambda: _freed(torch.randn(8, 32)[4:]),
        lambda: _freed(torch.randn(8, 4, 32).transpose(0, 1)),
    ],
    ids=["zero", "freed", "freed-view", "freed-strided"],
)
def test_tensors_without_memory_are_refused(quantizer, make):
    with pytest.raises((RecipeError, ConstraintError), match="memory"):
        quantizer(make())


def test_quantizers_in_plain_torch_refuse_freed_tensors():
    with pytest.raises(RecipeError, match=r"takes a tensor in memory, got a freed one of shape \(4, 32\)"):
        CurrentScalingQuantizerRef()(_freed(torch.randn(4, 32)))


@pytest.mark.parametrize("part", ["_rowwise_data", "_rowwise_scale_inv"])
def test_a_tensor_whose_parts_were_freed_is_not_decoded(part):
    quantized = MXFP8Quantizer()(torch.randn(64, 32))
    _freed(getattr(quantized, part))
    with pytest.raises(RecipeError, match="must be in memory"):
        quantized.dequantize()


def test_an_empty_tensor_needs_no_memory(quantizer):
    assert quantizer(torch.empty(0, 32)).dequantize().shape == (0, 32)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.functionalize(f)(x),
        lambda f, x: torch.vmap(f)(x),
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.func.grad(lambda a: f(a).sum())(x),
    ],
    ids=["functionalize", "vmap", "jvp", "grad"],
)
def test_transforms_of_torch_func_are_refused(quantizer, transform):
    with pytest.raises(RecipeError, match=r"outside of the transform"):
        transform(lambda a: quantizer(a).dequantize(), torch.randn(4, 32))


@pytest.mark.every(4)
@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.t_(),
        lambda tensor: tensor.transpose_(0, 1),
        lambda tensor: tensor.swapaxes_(0, 1),
        lambda tensor: tensor.unsqueeze_(0),
        lambda tensor: tensor.squeeze_(0),
        lambda tensor: tensor.as_strided_((2, 2), (1, 1)),
        lambda tensor: tensor.resize_(4, 4),
        lambda tensor: tensor.resize_as_(torch.ones(4, 4)),
        lambda tensor: tensor.set_(),
        lambda tensor: tensor.set_(torch.ones(4)),
        lambda tensor: tensor.set_(torch.ones(4).untyped_storage()),
    ],
)
def test_changing_the_shape_in_place_is_refused_untouched(quantizer, change):
    quantized = quantizer(torch.randn(64, 32))
    values = quantized.dequantize()
    with pytest.raises(RecipeError, match="must keep its shape and memory"):
        change(quantized)
    assert (quantized.shape, quantized.stride()) == ((64, 32), (32, 1))
    assert torch.equal(quantized.dequantize(), values)


def test_a_plain_tensor_takes_the_shape_of_a_quantized_one(quantizer):
    assert torch.ones(2).resize_as_(quantizer(torch.randn(64, 32))).shape == (64, 32)


def test_a_dtype_that_is_not_high_precision_is_refused(quantizer):
    for make in (
        lambda dtype: quantizer(torch.randn(4, 32), dtype=dtype),
        lambda dtype: quantizer.make_empty((4, 32), dtype=dtype),
        lambda dtype: CurrentScalingQuantizerRef()(torch.randn(4, 32), dtype=dtype),
    ):
        with pytest.raises(RecipeError, match=r"dtype must be float32, bfloat16 or float16, got torch.float64"):
            make(torch.float64)


@pytest.mark.parametrize("make", [MXFP8Quantizer, CurrentScalingQuantizerRef])
def test_a_dtype_beside_out_is_refused(make):
    out = make()(torch.randn(4, 32))
    with pytest.raises(RecipeError, match=r"got dtype=torch.bfloat16 beside it"):
        make().quantize(torch.randn(4, 32), out=out, dtype=torch.bfloat16)


OTHER = Float8CurrentScalingQuantizer(torch.float8_e4m3fn)
X = torch.ones(64, 32)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda quantizer: quantizer([1.0, 2.0]),
            "what MXFP8Quantizer quantizes must be a tensor, got list; make it one first",
        ),
        (lambda quantizer: quantizer.update_quantized(X, torch.zeros(64, 32)), "dst must be a MXFP8.* got Tensor"),
        (lambda quantizer: quantizer.update_quantized(X, OTHER(X)), "dst must be a MXFP8.* got Float8Tensor"),
        (lambda quantizer: quantizer.update_quantized([1.0], quantizer(X)), "must be a tensor, got list"),
        (lambda quantizer: quantizer.update_quantized(X, quantizer(X), noop_flag=1), "noop_flag must be a tensor"),
        (lambda quantizer: quantizer.qgemm(X, X), "operand must be a SchemeStorage, got Tensor; quantize it first"),
        (lambda quantizer: CurrentScalingQuantizerRef().qgemm(X, X), "must be a CurrentScalingTensorRef, got Tensor"),
        (
            lambda quantizer: Quantizer.qgemm(CurrentScalingQuantizerRef(), X, X),
            "operand must be a QuantizedTensorStorage, got Tensor",
        ),
        (lambda quantizer: prepare_for_saving(3), "must be a tensor, a quantized one or None, got int"),
        (
            lambda quantizer: restore_from_saved([], prepare_for_saving(X, X)[1]),
            "2 saved tensors must be restored, got 0; pass what prepare_for_saving returned",
        ),
        (lambda quantizer: restore_from_saved([], 3), "saved objects, got int; pass what prepare_for_saving returned"),
        (lambda quantizer: restore_from_saved([X], [X]), "pass what prepare_for_saving returned"),
    ],
)
def test_arguments_of_another_kind_are_named(call, says):
    with pytest.raises(RecipeError, match=says):
        call(MXFP8Quantizer())


def _remade(tensor, **changes):
    """A tensor of the parts of another, with some of its arguments changed."""
    return type(tensor)(**{**tensor.get_metadata(), **changes})


FLOAT8 = OTHER(X)
MXFP8 = MXFP8Quantizer()(X)
NVFP4 = NVFP4Quantizer()(X)
BLOCKS = Float8BlockQuantizer(torch.float8_e4m3fn)(X)
STORAGE = MXFP8Quantizer(internal=True)(X)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: MXFP8Quantizer()(X.numpy()), "what MXFP8Quantizer quantizes must be a tensor, got ndarray"),
        (lambda: MXFP8Quantizer()(X.to_sparse()), "must be a dense tensor, got layout torch.sparse_coo; call to_dense"),
        (lambda: MXFP8Quantizer()(torch.nested.nested_tensor([X, X])), "must be one dense tensor, got a nested one"),
        (
            lambda: MXFP8Quantizer().qgemm(
                torch.nested.nested_tensor([X, X], layout=torch.jagged), MXFP8Quantizer()(X)
            ),
            "an operand of a product must be one dense tensor, got a nested one",
        ),
        (lambda: MXFP8Quantizer()(X, dtype="float32"), "dtype must be float32, bfloat16 or float16, got 'float32'"),
        (lambda: MXFP8Quantizer().make_empty(3), "shape must be a tuple of sizes, got 3"),
        (lambda: MXFP8Quantizer().make_empty((2, -1)), r"shape must be a tuple of sizes, got \(2, -1\)"),
        (lambda: MXFP8Quantizer().make_empty("ab"), "shape must be a tuple of sizes, got 'ab'"),
        (lambda: MXFP8Quantizer().make_empty((2, 2), device="cuda"), "device must be cpu or meta, got 'cuda'"),
        (lambda: MXFP8Quantizer().make_empty((2, 2), device="nowhere"), "device must be cpu or meta, got 'nowhere'"),
        (lambda: MXFP8Quantizer().make_empty((2, 2), requires_grad=1), "requires_grad must be True or False, got 1"),
        (lambda: MXFP8Quantizer(internal=True).make_empty((2, 2), requires_grad=True), "have no gradient"),
        (lambda: MXFP8Quantizer().set_usage(rowwise=1), "rowwise must be True, False or None, got 1"),
        (lambda: MXFP8Quantizer().update_quantized(X.to("meta"), MXFP8Quantizer()(X)), "src must have values, .* meta"),
        (
            lambda: _remade(MXFP8, quantizer=OTHER),
            "the quantizer of a MXFP8TensorStorage must make such tensors, got a Float8",
        ),
        (lambda: _remade(FLOAT8, quantizer=MXFP8Quantizer()), "the quantizer of a Float8TensorStorage must make such"),
        (lambda: _remade(NVFP4, quantizer=OTHER), "the quantizer of a NVFP4TensorStorage must make such tensors"),
        (lambda: _remade(BLOCKS, quantizer=OTHER), "the quantizer of a Float8BlockwiseQTensorStorage must make such"),
        (lambda: _remade(MXFP8, quantizer=3), "must make such tensors, got 3"),
        (lambda: _remade(MXFP8, rowwise_scale_inv=None), "_rowwise_scale_inv must be torch.uint8 .* got None"),
        (lambda: _remade(MXFP8, rowwise_data=X.numpy()), "rowwise_data must be a tensor, got ndarray"),
        (lambda: _remade(MXFP8, rowwise_data=MXFP8._rowwise_data.to("meta")), "must be on one device"),
        (lambda: _remade(MXFP8, shape=(64, "32")), r"shape must be a tuple of sizes, got \(64, '32'\)"),
        (lambda: _remade(MXFP8, device="nowhere"), "device must be that of the parts, cpu, got 'nowhere'"),
        (lambda: _remade(FLOAT8, fp8_scale_inv=torch.ones(2)), "fp8_scale_inv must be one value, .* shape"),
        (lambda: _remade(FLOAT8, fp8_scale_inv="1"), "fp8_scale_inv must be a tensor, got str"),
        (lambda: _remade(NVFP4, amax_rowwise=1.0), "amax_rowwise must be a tensor, got float"),
        (lambda: _remade(BLOCKS, is_2D_scaled="yes"), "is_2D_scaled must be True or False, got 'yes'"),
        (lambda: STORAGE.size(2), r"dim must be one of the 2 dims of shape \(64, 32\), got 2"),
        (lambda: STORAGE.view(3, 5), r"the shape of a view must hold 2048 elements, got \(3, 5\)"),
        (lambda: STORAGE.view("ab"), "the shape of a view must be a tuple of sizes"),
        (lambda: STORAGE.dequantize(dtype="float32"), "dtype must be a torch.dtype, got 'float32'"),
        (lambda: STORAGE.update_usage(rowwise_usage="no"), "rowwise_usage must be True, False or None, got 'no'"),
        (lambda: STORAGE.restore_from_saved(3), "saved tensors must be a list of tensors and None, got 3"),
        (lambda: STORAGE.update_quantizer(MXFP8Quantizer), "must make codes like those of MXFP8Quantizer"),
        (lambda: MXFP8.quantize_(X[:3]), r"must be real numbers of its shape \(64, 32\), got .* \(3, 32\)"),
        (lambda: MXFP8.quantize_([1.0]), "what overwrites a quantized tensor must be a tensor, got list"),
        (
            lambda: CurrentScalingQuantizerRef().qgemm(*[CurrentScalingQuantizerRef()(X)] * 2, bias=torch.ones(3)),
            r"bias must hold real numbers of shape \(64,\) on cpu, got torch.float32 of shape \(3,\)",
        ),
    ],
)
def test_wrong_arguments_are_named(call, says):
    with pytest.raises(RecipeError, match=says):
        call()


def test_a_storage_is_quantized_by_its_values(quantizer):
    storage = MXFP8Quantizer(internal=True)(torch.randn(64, 32))
    values = storage.dequantize()
    expected = quantizer(values).dequantize()
    assert torch.equal(quantizer(storage).dequantize(), expected)
    target = quantizer(torch.zeros(64, 32))
    quantizer.update_quantized(storage, target)
    assert torch.equal(target.dequantize(), expected)


def test_a_scalar_can_be_made_empty(quantizer):
    made = quantizer.make_empty(())
    assert made.shape == ()
    assert made.dequantize() == 0


def test_a_storage_is_viewed_with_a_size_left_open():
    storage = MXFP8Quantizer(internal=True)(torch.randn(64, 32))
    assert storage.view(2, -1, 32).shape == (2, 32, 32)
    assert torch.equal(storage.view(2, -1, 32).dequantize().reshape(64, 32), storage.dequantize())


def test_a_template_quantizer_does_not_write_into_another_format():
    quantized = MXFP8Quantizer()(torch.randn(64, 32))
    values = quantized.dequantize()
    with pytest.raises(RecipeError, match=r"dst must be a CurrentScalingTensorRef, .* got MXFP8Tensor"):
        CurrentScalingQuantizerRef().update_quantized(torch.ones(64, 32), quantized)
    assert torch.equal(quantized.dequantize(), values)


def test_storages_of_the_template_compare_by_identity():
    one, other = (CurrentScalingQuantizerRef()(X) for _ in range(2))
    assert one == one
    assert one != other
