"""How torch operations run on quantized tensors: a table of those that keep codes; all others decode."""

import torch
from torch.utils._pytree import tree_map

from steelyard.errors import RecipeError
from steelyard.runtime.cuda.streams import has_streams
from steelyard.tensor.elements import HIGH_PRECISION
from steelyard.tensor.scheme_storage import SchemeStorage
from steelyard.tensor.views import read_box, view_copy

aten = torch.ops.aten


def dispatch(func, args, kwargs):
    """Run an operation that has a quantized tensor among its arguments."""
    handler = _HANDLERS.get(func)
    if handler is None:
        _check_keeps_shape(func, args)
    result = NotImplemented if handler is None else handler(func, *args, **kwargs)
    return _run_decoded(func, args, kwargs) if result is NotImplemented else result


def _check_keeps_shape(func, args) -> None:
    """Refuse operations that would change the shape or memory of a tensor without changing its codes."""
    if torch.Tag.inplace_view in func.tags and isinstance(args[0], SchemeStorage):
        name = func._schema.name.removeprefix("aten::")
        raise RecipeError(
            f"a quantized tensor must keep its shape and memory, got {name} on a {type(args[0]).__name__}; make a "
            "view of it instead, or dequantize() first"
        )


def _run_decoded(func, args, kwargs):
    """Run in high precision, then quantize what the operation wrote."""
    decoded = {}

    def decode(value):
        if not isinstance(value, SchemeStorage):
            return value
        if id(value) not in decoded:
            decoded[id(value)] = value._decode(value.dtype)
        return decoded[id(value)]

    dense_args, dense_kwargs = tree_map(decode, (tuple(args), dict(kwargs)))
    result = func(*dense_args, **dense_kwargs)
    alone, listed = _written(func, args, kwargs)
    written = {id(decoded[id(tensor)]): tensor for tensor in (*alone, *listed)}
    for tensor in written.values():
        _write(tensor, decoded[id(tensor)])
    # Autograd counts the writes to arguments, but not those to lists of them.
    torch.autograd.graph.increment_version([tensor for tensor in listed if not tensor.is_inference()])
    return tree_map(lambda value: written.get(id(value), value), result) if written else result


def _written(func, args, kwargs) -> tuple[list, list]:
    """The quantized tensors that an operation writes to: the arguments, and those in lists."""
    alone, listed = [], []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        if isinstance(value, SchemeStorage):
            alone.append(value)
        elif isinstance(value, list | tuple):
            listed += [each for each in value if isinstance(each, SchemeStorage)]
    return alone, listed


def root_of(tensor):
    """The tensor that owns the memory of a view."""
    return tensor if tensor._root is None else tensor._root


def _write(tensor, dense: torch.Tensor) -> None:
    """Quantize into a tensor. A view writes to the tensor it views, because a scale may span more than the view."""
    root = root_of(tensor)
    if root is tensor or (tensor.numel() == root.numel() and tensor.is_contiguous() and root.is_contiguous()):
        whole = dense.reshape(root.shape)
    else:
        whole = _decode_in_place(root)
        whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(dense)
    root._quantizer.write(whole.float() if whole.dtype == torch.float64 else whole, root)
    # A copy that this view derived has memory of its own, which the write above did not reach.
    own = [columnwise for columnwise in tensor._decode_order() if not _root_has(root, tensor, columnwise)]
    tensor._write_copies(tensor._derive(columnwise) for columnwise in own)


def _root_has(root, tensor, columnwise: bool) -> bool:
    """Whether a copy of a view is one of the tensor that it views: a transpose has the other one for each usage."""
    is_transpose = tensor._quantizer.transposed != root._quantizer.transposed
    return root._has(columnwise != is_transpose)


def _decode_in_place(tensor) -> torch.Tensor:
    """The values, with the strides of the tensor."""
    dense = tensor._decode(tensor.dtype)
    if tensor.is_contiguous():
        return dense
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dense.dtype, device=dense.device).copy_(dense)


def _view(func, tensor, *args, **kwargs):
    """A view that keeps codes if the scheme allows it; otherwise a view of a decoded copy."""
    canonical = actual = func(torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), *args, **kwargs)
    if not tensor.is_contiguous() or tensor.storage_offset():
        actual = func(tensor._layout(), *args, **kwargs)
    if not isinstance(actual, torch.Tensor):
        pieces = [_quantized_view(tensor, *pair) for pair in zip(canonical, actual, strict=True)]
    else:
        pieces = [_quantized_view(tensor, canonical, actual)]
    if any(piece is None for piece in pieces):
        pieces = _elementwise_views(func, tensor, actual, args, kwargs)
    if pieces is None:
        return func(_decode_in_place(tensor), *args, **kwargs)
    return pieces if not isinstance(actual, torch.Tensor) else pieces[0]


def _quantized_view(tensor, canonical: torch.Tensor, actual: torch.Tensor):
    """The quantized tensor of a view, found from the same view of a contiguous tensor; None if there is none."""
    box = read_box(canonical, tensor._matrix)
    if box is None:
        return None
    if tensor._with_gemm_swizzled_scales and (box.transposed or canonical.numel() != tensor.numel()):
        return None
    views = []
    for columnwise in tensor._decode_order():
        copy = tensor._raw_copy(columnwise) if _is_matrix(tensor, columnwise) else None
        if copy is not None:
            views.append(view_copy(copy, box))
        # The copy that holds the values must be in the view: the other one may hold different values.
        if not views or views[0] is None:
            return None
    quantizer = tensor._quantizer.of_transpose() if box.transposed else tensor._quantizer
    return _assemble_view(tensor, actual, quantizer, views)


def _assemble_view(tensor, actual: torch.Tensor, quantizer, copies):
    storage = tensor.STORAGE._from_copies(
        copies, actual.shape, tensor.dtype, quantizer, swizzled=tensor._with_gemm_swizzled_scales
    )
    storage._root, storage._device = root_of(tensor), tensor.device
    return type(tensor)._wrap(storage, layout=actual)


def _is_matrix(tensor, columnwise: bool) -> bool:
    """Whether the codes of a copy exist and are laid out as a matrix."""
    codes = getattr(tensor, tensor._fields(columnwise).codes)
    if codes is None:
        return False
    sizes, strides = codes.shape, codes.stride()
    return codes.is_contiguous() or all(
        sizes[dim] == 1 or strides[dim] == strides[dim + 1] * sizes[dim + 1] for dim in range(codes.dim() - 2)
    )


def _elementwise_views(func, tensor, actual, args, kwargs):
    """With one scale per tensor, a view of the tensor is the same view of its codes."""
    fields = tensor._fields(columnwise=False)
    codes = getattr(tensor, fields.codes)
    if tensor._scheme(False).family != "tensor" or codes is None or codes.stride() != tensor.stride():
        return None
    layouts = [actual] if isinstance(actual, torch.Tensor) else actual
    if func is aten.as_strided.default or any(layout.dim() == 0 for layout in layouts):
        return None
    viewed = func(codes, *args, **kwargs)
    pieces = []
    for layout, piece in zip(layouts, [viewed] if isinstance(actual, torch.Tensor) else viewed, strict=True):
        view = _assemble_view(tensor, layout, tensor._quantizer, ())
        setattr(view, fields.codes, piece)
        setattr(view, fields.scales, getattr(tensor, fields.scales))
        pieces.append(view)
    return pieces


def _as_strided(func, tensor, size, stride, storage_offset=None):
    # Offsets count from the start of the memory, not of the view.
    offset = tensor.storage_offset() if storage_offset is None else storage_offset
    root = root_of(tensor)
    if not root.is_contiguous():
        return func(_decode_in_place(root), size, stride, offset)
    return _view(func, root, size, stride, offset)


def _alias(func, tensor):
    return tensor._shallow_copy()


def _itself(func, tensor):
    return tensor


def _clone(func, tensor, **kwargs):
    return _map_parts(tensor, lambda part: part.clone(memory_format=torch.contiguous_format), func, kwargs)


def _to_copy(func, tensor, *, dtype=None, device=None, non_blocking=False, **kwargs):
    if dtype == torch.float64 != tensor.dtype:
        # As `float()` does, without rounding to the dtype that the tensor presents.
        return tensor._decode(dtype).to(device=device, non_blocking=non_blocking)
    if dtype not in (None, tensor.dtype, *HIGH_PRECISION):
        return NotImplemented
    if device is not None and has_streams(torch.device(device)):
        tensor = tensor._compact()  # GPUs read no layout of the CPU

    def move(part):
        return part.to(device=device, non_blocking=non_blocking, copy=True)

    options = {"memory_format": kwargs["memory_format"]} if "memory_format" in kwargs else {}
    return _map_parts(tensor, move, aten.clone.default, options, dtype=dtype)


def _map_parts(tensor, change, func, kwargs, dtype=None):
    """A tensor of changed parts with memory of its own, and the strides that the operation would give it."""
    storage = tensor._as_storage()
    storage._root, storage._dtype = None, dtype or tensor.dtype
    for name in tensor.PARTS:
        part = getattr(tensor, name)
        if part is not None:
            setattr(storage, name, change(part))
            storage._device = getattr(storage, name).device
    return type(tensor)._wrap(storage, layout=func(tensor._layout(), **kwargs))


def _new(func, tensor, size=None, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    """A tensor of the same format that holds zeros."""
    shape = tensor.shape if size is None else size
    device = tensor.device if device is None else torch.device(device)
    if dtype not in (None, tensor.dtype, *HIGH_PRECISION) or device.type not in ("cpu", "meta"):
        return NotImplemented
    quantizer = tensor._like()
    quantizer.amax_reduction_group = None
    return quantizer.make_empty(shape, device=device).to_dtype(dtype or tensor.dtype)


def _copy_(func, dst, src, non_blocking=False):
    if not isinstance(dst, SchemeStorage):
        return NotImplemented
    if isinstance(src, SchemeStorage) and _takes_codes(dst, src):
        dst._write_copies(src._raw_copy(columnwise) for columnwise in dst._decode_order())
        return dst
    dense = src._decode(dst.dtype) if isinstance(src, SchemeStorage) else src.to(dst.dtype)
    _write(dst, dense.expand(dst.shape))
    return dst


def _takes_codes(dst, src) -> bool:
    """Whether codes can be copied unchanged: the schemes are equal, and no scale spans more than `dst`."""
    root = root_of(dst)
    if dst._with_gemm_swizzled_scales or src._with_gemm_swizzled_scales:
        return False
    usages = dst._decode_order()
    if (dst.shape, dst._matrix) != (src.shape, src._matrix) or len(usages) != len(root._decode_order()):
        return False
    if not all(_root_has(root, dst, columnwise) for columnwise in usages):
        return False
    if dst.numel() != root.numel() and dst._quantizer.row_scheme.family in ("tensor", "row", "nvfp4"):
        return False
    present = [columnwise for columnwise in (False, True) if dst._has(columnwise)]
    return all(src._has(each) and src._scheme(each) == dst._scheme(each) for each in present)


_VIEWS = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unbind.int,
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.expand.default,
)

_HANDLERS = {
    **dict.fromkeys(_VIEWS, _view),
    aten.as_strided.default: _as_strided,
    aten.detach.default: _alias,
    aten.detach_.default: _itself,
    aten.alias.default: _alias,
    aten.clone.default: _clone,
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _copy_,
    aten.new_zeros.default: _new,
    aten.new_empty.default: _new,
    aten.empty_like.default: _new,
}
