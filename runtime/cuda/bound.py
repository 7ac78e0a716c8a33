"""Kernels of CUDA, bound to a program: no argument is checked, because the program made them all.

Each binding gives `run` and `allocate`, as those of the CPU do, but all values are tensors. A call launches on torch's
current stream of the device that its operands are on, waits for nothing, reads no value back, and allocates by torch
only: so it can be part of a CUDA graph. Where kernels come from is an argument: the pass that shows a program's kernels
binds the same functions to a recorder.
"""

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import is_stored_transposed, part_shapes, round_up
from steelyard.formats.schemes import Scheme
from steelyard.ir.kernel_calls import Kernel
from steelyard.runtime import dtypes
from steelyard.runtime.cuda import gemm
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.runtime.ranks import largest_of_ranks

Bound = tuple[Callable, Callable | None]
KernelsOn = Callable[[torch.device], Kernels]
_COPIES = (("row", False), ("col", True))


class _Copy:
    """Where the parts of one copy are among the values of a call."""

    def __init__(self, scheme: Any, names: Iterable[str], prefix: str, columnwise: bool):
        assert isinstance(scheme, Scheme)
        places = {name: index for index, name in enumerate(names)}
        self.scheme, self.columnwise = scheme, columnwise
        self._codes, self._scales, self._amax = (places.get(f"{prefix}.{part}") for part in ("codes", "scales", "amax"))

    def read(self, values: tuple, shape: tuple[int, int]) -> QuantizedCopy:
        """The copy of a matrix of this shape."""
        codes, scales, amax = (None if i is None else values[i] for i in (self._codes, self._scales, self._amax))
        return QuantizedCopy(codes, scales, amax, self.scheme, shape, self.columnwise)  # pyright: ignore[reportArgumentType]

    def operand(self, values: tuple) -> gemm.GemmOperand:
        """The copy as a native GEMM reads it."""
        codes, scales, amax = (None if i is None else values[i] for i in (self._codes, self._scales, self._amax))
        return gemm.GemmOperand(codes, scales, amax, self.scheme)  # pyright: ignore[reportArgumentType]


def _made_copies(kernel: Kernel) -> list[_Copy]:
    """The copies among a call's results."""
    names = (*kernel.operands, *kernel.results)
    results = [None if name in kernel.operands else name for name in names]
    return [
        _Copy(kernel.config[name], [result or "" for result in results], name, columnwise)
        for name, columnwise in _COPIES
        if name in kernel.config
    ]


def _index(kernel: Kernel, name: str) -> int | None:
    return kernel.operands.index(name) if name in kernel.operands else None


def _at(values: tuple, index: int | None) -> Any:
    return None if index is None else values[index]


def _matrix_shape(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.shape[:-1].numel(), tensor.shape[-1]


def _bind_quantize(kernel: Kernel, kernels_on: KernelsOn) -> Bound:
    copies = _made_copies(kernel)
    scale, amax, rng = (_index(kernel, name) for name in ("scale", "amax", "rng"))

    def quantize(*values: Any) -> None:
        source = values[0]
        made = [copy.read(values, _matrix_shape(source)) for copy in copies]
        kernels_on(source.device).quantize_into(
            source, made, scale=_at(values, scale), amax=_at(values, amax), rng=_at(values, rng)
        )

    return quantize, _allocate_copies(copies)


def _bind_produce_quantize(kernel: Kernel, kernels_on: KernelsOn) -> Bound:
    copies = _made_copies(kernel)
    producer, epsilon = str(kernel.config["producer"]), kernel.config["epsilon"]
    scale = _index(kernel, "scale")
    taken = {"layer_norm": ("source", "weight", "bias"), "rms_norm": ("source", "weight")}.get(
        producer, ("source", "other") if "other" in kernel.operands else ("source",)
    )
    inputs = [_index(kernel, name) for name in taken]
    is_norm = producer.endswith("_norm")

    def produce_quantize(*values: Any) -> None:
        given = tuple(_at(values, index) for index in inputs)
        source = producer, (*given, epsilon) if is_norm else given
        made = [copy.read(values, _matrix_shape(values[0])) for copy in copies]
        kernels_on(values[0].device).quantize_into(source, made, scale=_at(values, scale))

    return produce_quantize, _allocate_copies(copies)


def _allocate_copies(copies: list[_Copy]) -> Callable:
    def allocate(source: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        return tuple(
            torch.empty(sizes, dtype=dtype, device=source.device)  # pyright: ignore[reportArgumentType]
            for copy in copies
            for sizes, dtype in _parts(copy.scheme, _matrix_shape(source), copy.columnwise).values()
        )

    return allocate


def _parts(scheme: Scheme, shape: tuple[int, int], columnwise: bool) -> dict[str, tuple[tuple, torch.dtype]]:
    found = part_shapes(scheme, shape, columnwise)
    return {name: (sizes, dtypes.DTYPES[dtype]) for name, (sizes, dtype) in found.items()}


class _Operand(_Copy):
    """An operand of a GEMM: a copy of a matrix whose sizes may be known only at run time."""

    def __init__(self, kernel: Kernel, name: str, columnwise: bool):
        super().__init__(kernel.config[name], kernel.operands, name, columnwise)
        shape = kernel.config[f"{name}_shape"]
        assert isinstance(shape, tuple)
        self._known = prod(size for size in shape[:-1] if size is not None)
        self._is_static, self._columns = None not in shape[:-1], shape[-1]

    def decode(self, values: tuple, sizes: tuple, kernels: Kernels) -> torch.Tensor:
        """The matrix, its rows along the reduction."""
        rows = self._known if self._is_static else self._known * prod(sizes)
        return gemm.decode(kernels, self.read(values, (rows, self._columns)))  # pyright: ignore[reportArgumentType]


def _gemm_operands(kernel: Kernel) -> tuple[_Operand, _Operand]:
    kind = str(kernel.config["kind"])
    return _Operand(kernel, "lhs", kind == "wgrad"), _Operand(kernel, "rhs", kind != "fprop")


def _sizes_of(kernel: Kernel) -> slice:
    count = len(kernel.operands)
    return slice(count - kernel.operands.count("size"), count)


def _bind_gemm(kernel: Kernel, kernels_on: KernelsOn) -> Bound:
    lhs, rhs = _gemm_operands(kernel)
    bias, sizes, result = _index(kernel, "bias"), _sizes_of(kernel), len(kernel.operands)
    dtype = dtypes.result_dtype(kernel.types[0])

    def native(*values: Any) -> tuple[torch.Tensor]:
        left, right, own_bias = lhs.operand(values), rhs.operand(values), _at(values, bias)
        if left.codes.shape[1] == 0:
            # No GEMM reduces over nothing.
            empty = torch.zeros((left.codes.shape[0], right.codes.shape[0]), dtype=dtype, device=left.codes.device)
            return (empty if own_bias is None else empty + own_bias,)
        return (gemm.multiply(left, right, bias=own_bias, out_dtype=dtype),)

    def emulated(*values: Any) -> None:
        out = values[result]
        kernels = kernels_on(out.device)
        left, right = (operand.decode(values, values[sizes], kernels) for operand in (lhs, rhs))
        gemm.multiply_decoded(left, right.t(), out.view(-1, out.shape[-1]))

    # torch's scaled_mm makes its result itself.
    return (native, None) if kernel.config["path"] == "native" else (emulated, _allocate_results(kernel))


def _bind_batched_gemm(kernel: Kernel, kernels_on: KernelsOn) -> Bound:
    """One product for each entry of the batch dims."""
    lhs, rhs = _gemm_operands(kernel)
    batch_dims, shape, sizes = kernel.config["batch_dims"], kernel.config["lhs_shape"], _sizes_of(kernel)
    assert isinstance(shape, tuple)
    assert isinstance(batch_dims, int)
    dtype, rhs_shape = dtypes.result_dtype(kernel.types[0]), kernel.config["rhs_shape"]

    def batched_gemm(*values: Any) -> tuple[torch.Tensor]:
        given = iter(values[sizes])
        lead = [next(given) if size is None else size for size in shape[:-1]]
        count = prod(lead[:batch_dims])
        kernels = kernels_on(values[0].device)
        left = lhs.decode(values, values[sizes], kernels)
        # The batch dims of both are the same; only the rows of the right may be its own.
        rows = values[kernel.operands.index("rhs.codes")].shape[0]
        right = gemm.decode(kernels, rhs.read(values, (rows, rhs_shape[-1])))  # pyright: ignore
        out = torch.empty((*lead, rows // count if count else 0), dtype=dtype, device=left.device)
        if out.numel():
            left, right = (matrix.view(count, -1, matrix.shape[-1]) for matrix in (left, right))
            gemm.multiply_decoded(left, right.mT, out.view(count, -1, out.shape[-1]))
        return (out,)

    return batched_gemm, None


def _allocate_results(kernel: Kernel) -> Callable:
    """Results whose unknown sizes are the call's last operands."""
    shapes = [dtypes.shape_of(type_) for type_ in kernel.types]
    types = [dtypes.result_dtype(type_) for type_ in kernel.types]
    sizes = _sizes_of(kernel)

    def allocate(*operands: Any) -> tuple[torch.Tensor, ...]:
        made = []
        for shape, dtype in zip(shapes, types, strict=True):
            given = iter(operands[sizes])
            known = [next(given) if size is None else size for size in shape]
            made.append(torch.empty(known, dtype=dtype, device=operands[0].device))
        return tuple(made)

    return allocate


def _bind_epilogue(kernel: Kernel, kernels_on: KernelsOn) -> Bound:
    activation, count = str(kernel.config["epilogue"]), len(kernel.operands)
    addends = {name: index for name in ("bias", "residual", "accumulator") if (index := _index(kernel, name))}
    keeps = "preactivation" in kernel.results
    types = [dtypes.result_dtype(type_) for type_ in kernel.types]

    def epilogue(*values: Any) -> None:
        given = {name: values[index] for name, index in addends.items()}
        if keeps:
            given["preactivation"] = values[count + 1]
        kernels_on(values[0].device).epilogue(values[0], values[count], activation=activation, **given)

    def allocate(source: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty(source.shape, dtype=dtype, device=source.device) for dtype in types)

    return epilogue, allocate


def _logical_shape(kernel: Kernel, sizes: Iterable[int]) -> tuple[int, int]:
    """The matrix of a config's `shape`, its leading dims as one."""
    shape = kernel.config["shape"]
    assert isinstance(shape, tuple)
    assert shape[-1] is not None
    return prod(size for size in shape[:-1] if size is not None) * prod(sizes), shape[-1]


def _bind_dequantize(kernel: Kernel, kernels_on: KernelsOn) -> Bound:
    names = [f"source.{name}" for name in kernel.operands]
    copy = _Copy(kernel.config["scheme"], names, "source", kernel.config["usage"] == "columnwise")
    sizes, result = _sizes_of(kernel), len(kernel.operands)

    def dequantize(*values: Any) -> None:
        out = values[result]
        source = copy.read(values, _logical_shape(kernel, values[sizes]))
        kernels_on(out.device).dequantize(source, out=out.view(source.shape))

    return dequantize, _allocate_results(kernel)


def _source_copy(kernel: Kernel) -> _Copy:
    """The one copy that an op reads from one quantized tensor to another."""
    name, columnwise = next((name, columnwise) for name, columnwise in _COPIES if f"from_{name}" in kernel.config)
    return _Copy(kernel.config[f"from_{name}"], kernel.operands, name, columnwise)


def _bind_transpose(kernel: Kernel, kernels_on: KernelsOn) -> Bound:
    source, sizes = _source_copy(kernel), _sizes_of(kernel)

    def transpose(*values: Any) -> tuple[torch.Tensor, ...]:
        copy = source.read(values, _logical_shape(kernel, values[sizes]))
        turned = kernels_on(values[0].device).transpose(copy)
        return tuple(part for part in (turned.codes, turned.scales, turned.amax) if part is not None)

    return transpose, None


def _bind_turn(_kernel: Kernel, kernels_on: KernelsOn) -> Bound:
    def turn(codes: torch.Tensor, *_: Any) -> tuple[torch.Tensor]:
        return (kernels_on(codes.device).transpose_codes(codes),)

    return turn, None


def _bind_swizzle(kernel: Kernel, kernels_on: KernelsOn) -> Bound:
    source = _source_copy(kernel)

    def swizzle(scales: torch.Tensor, *_: Any) -> tuple[torch.Tensor]:
        return (kernels_on(scales.device).swizzle_scales(scales, source.scheme, columnwise=source.columnwise),)

    return swizzle, None


def _bind_pad(kernel: Kernel, _: KernelsOn) -> Bound:
    """Parts of a quantized tensor with zeros behind them, or a plain tensor."""
    multiples = kernel.config["multiples"]
    assert isinstance(multiples, tuple)
    if kernel.operands[0] == "operand0":
        return (lambda source, *_: (_padded(source, _rounded(source.shape, multiples)),)), None
    source = _source_copy(kernel)
    scheme, columnwise = source.scheme, source.columnwise
    parts = [name.rpartition(".")[2] for name in kernel.results]
    is_turned = is_stored_transposed(scheme, columnwise)

    def pad(codes: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # Sizes known only at run time are those of the codes: what fills their last byte is padding too.
        rows, columns = codes.shape[0], codes.shape[1] * (2 if scheme.element == "f4E2M1FN" else 1)
        logical = _rounded((columns, rows) if is_turned else (rows, columns), multiples)
        wanted = part_shapes(scheme, (logical[0], logical[1]), columnwise)
        pairs = zip((codes, *others), parts, strict=True)
        return tuple(_padded(part, wanted[name][0]) for part, name in pairs)

    return pad, None


def _rounded(shape: Iterable[int], multiples: tuple) -> list[int]:
    return [round_up(size, multiple) for size, multiple in zip(shape, multiples, strict=True)]


def _padded(part: torch.Tensor, shape: Iterable[Any]) -> torch.Tensor:
    missing = [wanted - size for size, wanted in zip(part.shape, shape, strict=True)]
    return torch.nn.functional.pad(part, [side for size in reversed(missing) for side in (0, size)])


def _bind_unpad(kernel: Kernel, _: KernelsOn) -> Bound:
    shape = dtypes.shape_of(kernel.types[0])

    def unpad(source: torch.Tensor, *sizes: int) -> tuple[torch.Tensor]:
        given = iter(sizes)
        for dim, size in enumerate(shape):
            source = source.narrow(dim, 0, next(given) if size is None else size)
        return (source.contiguous(),)

    return unpad, None


def _bind_amax(kernel: Kernel, kernels_on: KernelsOn) -> Bound:
    per_row, rht = bool(kernel.config["per_row"]), bool(kernel.config["rht"])

    def amax(source: torch.Tensor) -> tuple[torch.Tensor]:
        found = kernels_on(source.device).amax(source, rht=rht, per_row=per_row)
        return (found.view(source.shape[:-1] if per_row else ()),)

    return amax, None


def _bind_compute_scale(kernel: Kernel, kernels_on: KernelsOn) -> Bound:
    scheme = kernel.config["scheme"]
    assert isinstance(scheme, Scheme)
    return (lambda amax: (kernels_on(amax.device).compute_scale(amax, scheme),)), None


def _bind_update_scale(kernel: Kernel, kernels_on: KernelsOn) -> Bound:
    scheme, margin, algorithm = (kernel.config[name] for name in ("scheme", "margin", "algorithm"))
    assert isinstance(scheme, Scheme)
    assert isinstance(margin, int)
    reduce = bool(kernel.config.get("reduce"))

    def update_scale(scale: torch.Tensor, history: torch.Tensor, amax: torch.Tensor) -> tuple:
        amax = largest_of_ranks(amax) if reduce else amax
        kernels = kernels_on(amax.device)
        if not callable(algorithm):
            return kernels.update_scale(scale, history, amax, scheme, margin=margin, algorithm=str(algorithm))
        with_newest = history.clone()
        with_newest[0] = amax
        picked = torch.as_tensor(algorithm(with_newest), dtype=torch.float32, device=amax.device)
        options = {"margin": margin, "algorithm": "most_recent"}
        new_scale, _ = kernels.update_scale(scale, history, picked.reshape(()), scheme, **options)
        _, new_history = kernels.update_scale(scale, history, amax, scheme, **options)
        return torch.where(amax == 0, scale, new_scale), new_history

    return update_scale, None


def _bind_advance_rng(_kernel: Kernel, _: KernelsOn) -> Bound:
    def advance_rng(state: torch.Tensor) -> tuple[torch.Tensor]:
        moved = state.clone()
        moved[1:].add_(1)
        return (moved,)

    return advance_rng, None


BINDINGS: dict[str, Callable[[Kernel, KernelsOn], Bound]] = {
    "quantize": _bind_quantize,
    "produce_quantize": _bind_produce_quantize,
    "gemm": _bind_gemm,
    "batched_gemm": _bind_batched_gemm,
    "epilogue": _bind_epilogue,
    "transpose": _bind_transpose,
    "turn": _bind_turn,
    "swizzle": _bind_swizzle,
    "pad": _bind_pad,
    "unpad": _bind_unpad,
    "dequantize": _bind_dequantize,
    "amax": _bind_amax,
    "compute_scale": _bind_compute_scale,
    "update_scale": _bind_update_scale,
    "advance_rng": _bind_advance_rng,
}
