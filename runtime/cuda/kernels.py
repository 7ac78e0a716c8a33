"""The functions of `steelyard.reference` on generated kernels, the same bytes: each plans launches and makes them.

Nothing here needs a GPU: what a launch does is its launcher's business.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from steelyard.codegen.amax import AmaxKernel
from steelyard.codegen.dequantize import DequantizeKernel
from steelyard.codegen.epilogue import ADDENDS, EpilogueKernel
from steelyard.codegen.produce import ProduceKernel
from steelyard.codegen.producers import KINDS, STATISTICS, Producer
from steelyard.codegen.quantize import QuantizeKernel
from steelyard.codegen.scale_layouts import ScaleLayoutKernel
from steelyard.codegen.state import ComputeScaleKernel, UpdateScaleKernel
from steelyard.codegen.statistics import RowStatisticsKernel
from steelyard.codegen.transpose import TransposeKernel
from steelyard.errors import ConstraintError
from steelyard.formats.checks import amax_pair, check_amax_options, check_scheme
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import round_up
from steelyard.formats.schemes import Scheme
from steelyard.runtime.cuda.launches import (
    DTYPE_NAMES,
    Launch,
    Launcher,
    MatrixInput,
    copy_spec,
    empty_copy,
    flattened,
    is_aligned,
    matrix_input,
)

_SIGN = 1 << 63


@dataclass(frozen=True)
class Kernels:
    """The kernels of one device, made and launched by `launch`."""

    launch: Launcher

    def amax(self, x: torch.Tensor, *, rht: bool = False, per_row: bool = False) -> torch.Tensor:
        """Largest magnitude of `x`, of each row, or after the transform of its columns; NaN if `x` holds one."""
        check_amax_options(rht=rht, per_row=per_row)
        matrix = flattened(x)
        found = torch.zeros(matrix.shape[:1] if per_row else (), dtype=torch.float32, device=x.device)
        self._find_amax(matrix_input([matrix]), found, columnwise=rht, rht=rht, per_line=per_row)
        return found

    def quantize(
        self,
        x: torch.Tensor,
        row: Scheme | None,
        col: Scheme | None,
        *,
        scale: torch.Tensor | None = None,
        amax: torch.Tensor | tuple | None = None,
        rng: torch.Tensor | tuple[int, int] | None = None,
    ) -> tuple[QuantizedCopy | None, QuantizedCopy | None]:
        """The rowwise and the columnwise copy of `x`, its leading dims flattened; None where no scheme is given.

        `scale`: the scale of per-tensor copies (needed for delayed ones); `amax`: one already reduced, for per-tensor
        and NVFP4 copies, or a pair (row, col); `rng`: seed and offset of stochastic rounding, two 64-bit integers.
        """
        return self._quantize(matrix_input([flattened(x)]), x.device, row, col, scale, amax, rng)

    def quantize_produced(
        self,
        producer: str,
        inputs: tuple,
        row: Scheme | None,
        col: Scheme | None,
        *,
        scale: torch.Tensor | None = None,
        amax: torch.Tensor | tuple | None = None,
        rng: torch.Tensor | tuple[int, int] | None = None,
    ) -> tuple[QuantizedCopy | None, QuantizedCopy | None]:
        """`quantize(produce(producer, inputs), row, col, ...)` without the tensor in between."""
        return self._quantize(self._produced(producer, inputs), inputs[0].device, row, col, scale, amax, rng)

    def produce(self, producer: str, inputs: tuple) -> torch.Tensor:
        """What a producer makes of inputs of one dtype, computed in float32 and rounded to it.

        Producers and inputs: "relu", "gelu", "gelu_tanh", "silu" (x,); "silu_and_multiply", "add" (a, b);
        "layer_norm" (x, weight, bias, epsilon) and "rms_norm" (x, weight, epsilon) over the last dim, None for no
        weight or bias.
        """
        made = self._produced(producer, inputs)
        out = torch.empty(inputs[0].shape, dtype=inputs[0].dtype, device=inputs[0].device)
        if out.numel():
            self.launch(Launch.of(ProduceKernel(made.source), {**made.named, "out": out}, *made.shape))
        return out

    def dequantize(
        self, copy: QuantizedCopy, dtype: torch.dtype = torch.float32, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The values of a copy as a logical (M, N) matrix; the random Hadamard transform is undone."""
        if out is None:
            out = torch.empty(copy.shape, dtype=dtype, device=copy.codes.device)
        if not out.numel():
            return out
        rows, columns = copy.shape
        spec = copy_spec(copy)
        # Runs of 16 are stored whole.
        aligned = spec.aligned and columns % 16 == 0 and out.data_ptr() % 16 == 0
        kernel = DequantizeKernel(replace(spec, aligned=aligned), DTYPE_NAMES[out.dtype])
        named = {"codes": copy.codes, "scales": copy.scales, "out": out, "rows": rows, "columns": columns}
        if copy.amax is not None:
            named["amax"] = copy.amax
        self.launch(Launch.of(kernel, named, rows, columns))
        return out

    def transpose(self, copy: QuantizedCopy) -> QuantizedCopy:
        """The copy of the other usage, from the codes."""
        if not copy.scheme.is_transposable:
            raise ConstraintError(
                "transpose_scheme",
                "the other usage must follow from the codes: one scale for the tensor or square tiles, "
                f"got block {copy.scheme.block}; quantize it from the source",
            )
        other = empty_copy(copy.scheme, copy.shape, columnwise=not copy.columnwise, device=copy.codes.device)
        other.amax = None if copy.amax is None else copy.amax.clone()
        self._transpose_scales(copy, other.scales)
        if copy.scheme.family == "mx":
            other.codes.copy_(copy.codes)
        elif copy.codes.numel():
            self._transpose_codes(copy.codes, other.codes, copy.stored_shape, copy.scheme.family == "nvfp4")
        return other

    def transpose_codes(self, codes: torch.Tensor) -> torch.Tensor:
        """A matrix of bytes, turned."""
        out = torch.empty(codes.shape[::-1], dtype=torch.uint8, device=codes.device)
        if codes.numel():
            rows, columns = codes.shape
            self._transpose_codes(codes, out, (rows, columns), nibbles=False)
        return out

    def swizzle(self, copy: QuantizedCopy) -> torch.Tensor:
        """The scales in the layout that GPU GEMMs read, padded with zeros; for MX and NVFP4 the order of its bytes."""
        return self.swizzle_scales(copy.scales, copy.scheme, columnwise=copy.columnwise)

    def swizzle_scales(self, scales: torch.Tensor, scheme: Scheme, *, columnwise: bool) -> torch.Tensor:
        """`swizzle` of the scales of a copy."""
        family = scheme.family
        if family == "tensor":
            raise ConstraintError(
                "swizzle_scheme", "the gemm layout needs block scales, got block tensor; use the scale as it is"
            )
        if family == "block":
            turned = scheme.block == "1x128"
            rows, columns = scales.shape[::-1] if turned else scales.shape
            out = torch.empty((rows, round_up(columns, 4)), dtype=torch.float32, device=scales.device)
            self._move_scales("pad_transposed" if turned else "pad", scales, out, tuple(out.shape))
            return out
        turned = family == "mx" and columnwise
        rows, columns = scales.shape[::-1] if turned else scales.shape
        padded = round_up(rows, 128), round_up(columns, 4)
        out = torch.empty(padded, dtype=torch.uint8, device=scales.device)
        lines = padded[0] // 128, padded[1] * 128
        self._move_scales("swizzle_transposed" if turned else "swizzle", scales, out, lines)
        return out

    def epilogue(
        self,
        source: torch.Tensor,
        out: torch.Tensor,
        *,
        activation: str = "none",
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        accumulator: torch.Tensor | None = None,
        preactivation: torch.Tensor | None = None,
    ) -> None:
        """What the fused store of a GEMM leaves in `out`, from a float32 product of any strides.

        `activation(source + bias) + residual`, or `source + accumulator`; `preactivation` takes `source + bias`.
        """
        if not out.numel():
            return
        given = {"source": source, "residual": residual, "accumulator": accumulator}
        matrices = {name: flattened(matrix) for name, matrix in given.items() if matrix is not None}
        outs = [flattened(matrix) for matrix in (out, preactivation) if matrix is not None]
        rows, columns = outs[0].shape
        aligned = all(is_aligned(matrix) for matrix in (*matrices.values(), *outs))
        named: dict[str, torch.Tensor | int] = {"out": outs[0], "rows": rows, "columns": columns, **matrices}
        for name, matrix in matrices.items():
            named[f"{name}_row_stride"], named[f"{name}_column_stride"] = matrix.stride()
        if bias is not None:
            named |= {"bias": bias, "bias_stride": bias.stride(0)}
            aligned = aligned and is_aligned(bias[None])
        if preactivation is not None:
            named["preactivation"] = outs[1]
        dtypes = {name: DTYPE_NAMES[matrices[name].dtype] for name in ADDENDS if name in matrices}
        if bias is not None:
            dtypes["bias"] = DTYPE_NAMES[bias.dtype]
        kernel = EpilogueKernel(
            DTYPE_NAMES[out.dtype], activation, preactivation=preactivation is not None, aligned=aligned, **dtypes
        )
        self.launch(Launch.of(kernel, named, rows, columns))

    def compute_scale(self, amax: torch.Tensor, scheme: Scheme) -> torch.Tensor:
        """The scale that follows from a tensor's amax."""
        scale = torch.empty((), dtype=torch.float32, device=amax.device)
        self.launch(Launch.of(ComputeScaleKernel(scheme), {"amax": amax, "scale": scale}, 1, 1))
        return scale

    def update_scale(
        self,
        scale: torch.Tensor,
        history: torch.Tensor,
        amax: torch.Tensor,
        scheme: Scheme,
        *,
        margin: int = 0,
        algorithm: str = "max",
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The scale and history of the next step, with `amax` the newest; nothing changes where it is 0."""
        if algorithm not in ("max", "most_recent"):
            raise ConstraintError(
                "update_scale_algorithm", f"algorithm must be max or most_recent on CUDA, got {algorithm!r}"
            )
        kernel = UpdateScaleKernel(scheme, margin, algorithm == "most_recent")
        new_scale, new_history = torch.empty_like(scale), torch.empty_like(history)
        named = {"scale": scale, "history": history, "amax": amax, "length": history.numel()}
        named |= {"new_scale": new_scale, "new_history": new_history}
        self.launch(Launch.of(kernel, named, 1, 1))
        return new_scale, new_history

    def quantize_into(
        self,
        source: torch.Tensor | tuple[str, tuple],
        copies: Sequence[QuantizedCopy],
        *,
        scale: torch.Tensor | None = None,
        amax: torch.Tensor | None = None,
        rng: torch.Tensor | None = None,
    ) -> None:
        """`quantize`, or `quantize_produced` of a producer and its inputs, into the memory of given copies."""
        made = matrix_input([flattened(source)]) if isinstance(source, torch.Tensor) else self._produced(*source)
        self._fill_copies(made, copies, scale, [amax] * len(copies), rng)

    def _quantize(self, made: MatrixInput, device, row, col, scale, amax, rng):
        amaxes = amax_pair(amax, row, col)
        copies = []
        for scheme, columnwise in zip((row, col), (False, True), strict=True):
            if scheme is not None:
                check_scheme(scheme, columnwise=columnwise, scale=scale, rng=rng)
                copies.append(empty_copy(scheme, made.shape, columnwise=columnwise, device=device))
        given = [amaxes[copy.columnwise] for copy in copies]
        self._fill_copies(made, copies, scale, given, _rng_tensor(rng, device))
        found = {copy.columnwise: copy for copy in copies}
        return found.get(False), found.get(True)

    def _fill_copies(self, made: MatrixInput, copies: Sequence[QuantizedCopy], scale, amaxes: Sequence, rng) -> None:
        found: dict[tuple, torch.Tensor] = {}
        for copy, given in zip(copies, amaxes, strict=True):
            self._prepare_amax(made, copy, scale, given, found)
        self._launch_quantize(made, copies, scale, rng)
        for copy, given in zip(copies, amaxes, strict=True):
            if scale is not None and given is not None and copy.amax is not None:
                copy.amax.copy_(given.reshape(copy.amax.shape))

    def _prepare_amax(self, made: MatrixInput, copy: QuantizedCopy, scale, given, found: dict) -> None:
        """Fill the amax that a copy's codes wait for; one with a given scale is recorded on the way."""
        if copy.amax is None:
            return
        if given is not None:
            copy.amax.copy_(given.reshape(copy.amax.shape))
            return
        scheme = copy.scheme
        per_line = scheme.second_level == "row"
        turned = copy.columnwise and (per_line or scheme.rht)
        options = turned, scheme.rht, per_line
        if options in found and (scheme.family == "nvfp4" or scale is None):
            copy.amax.copy_(found[options])  # the other copy asked for the same one
            return
        copy.amax.zero_()
        if scheme.family == "nvfp4" or scale is None:
            self._find_amax(made, copy.amax, columnwise=turned, rht=scheme.rht, per_line=per_line)
            found[options] = copy.amax

    def _find_amax(self, made: MatrixInput, out: torch.Tensor, **options: bool) -> None:
        if made.shape[0] * made.shape[1]:
            self.launch(Launch.of(AmaxKernel(made.source, **options), {**made.named, "amax": out}, *made.shape))

    def _launch_quantize(self, made: MatrixInput, copies: Sequence[QuantizedCopy], scale, rng) -> None:
        if not copies or not made.shape[0] * made.shape[1]:
            return self._fill_empty(copies, scale)
        specs = tuple(copy_spec(copy, given_scale=scale is not None) for copy in copies)
        named = dict(made.named)
        for copy in copies:
            usage = "col" if copy.columnwise else "row"
            parts = {"codes": copy.codes, "scales": copy.scales, "amax": copy.amax, "scale": scale, "rng": rng}
            named |= {f"{usage}_{name}": part for name, part in parts.items() if part is not None}
        return self.launch(Launch.of(QuantizeKernel(made.source, specs), named, *made.shape))

    def _fill_empty(self, copies: Sequence[QuantizedCopy], scale) -> None:
        """A tensor with no elements has a scale all the same."""
        for copy in copies:
            if copy.scheme.family == "tensor" and copy.amax is not None:
                own = self.compute_scale(copy.amax, copy.scheme) if scale is None else scale
                copy.scales.copy_(1 / own)

    def _produced(self, producer: str, inputs: tuple) -> MatrixInput:
        if producer not in KINDS:
            raise ConstraintError("producer_kind", f"producer must be one of {', '.join(KINDS)}, got {producer!r}")
        if not producer.endswith("_norm"):
            return matrix_input([flattened(x) for x in inputs], Producer(producer))
        x, *vectors, epsilon = inputs
        matrix = flattened(x)
        names = ("weight", "bias")[: len(vectors)]
        given = {name: vector for name, vector in zip(names, vectors, strict=True) if vector is not None}
        dtypes = {name: DTYPE_NAMES[vector.dtype] for name, vector in given.items()}
        strides = {f"{name}_stride": vector.stride(0) for name, vector in given.items()}
        statistics = self._row_statistics(matrix, producer == "layer_norm", epsilon)
        return matrix_input([matrix], Producer(producer, **dtypes), statistics=statistics, **given, **strides)

    def _row_statistics(self, matrix: torch.Tensor, centered: bool, epsilon: float) -> torch.Tensor:
        rows, columns = matrix.shape
        statistics = torch.empty((rows, STATISTICS), dtype=torch.float32, device=matrix.device)
        (bits,) = struct.unpack("<q", struct.pack("<d", epsilon))
        named = {"input0": matrix, "row_stride0": matrix.stride(0), "column_stride0": matrix.stride(1)}
        named |= {"rows": rows, "columns": columns, "epsilon": bits, "statistics": statistics}
        if matrix.numel():
            kernel = RowStatisticsKernel(DTYPE_NAMES[matrix.dtype], centered)
            self.launch(Launch.of(kernel, named, rows, columns))
        return statistics

    def _transpose_codes(self, codes: torch.Tensor, out: torch.Tensor, shape: tuple[int, int], nibbles: bool) -> None:
        rows, columns = shape
        pointers = codes.data_ptr() | out.data_ptr()
        kernel = TransposeKernel(nibbles, rows % 16 == 0 and columns % 16 == 0 and pointers % 16 == 0)
        named = {"codes": codes, "out": out, "rows": rows, "columns": columns}
        self.launch(Launch.of(kernel, named, rows, columns))

    def _transpose_scales(self, copy: QuantizedCopy, out: torch.Tensor) -> None:
        if copy.scheme.family == "tensor":
            out.copy_(copy.scales)
            return
        mx = "mx_to_rowwise" if copy.columnwise else "mx_to_columnwise"
        kind = {"block": "transpose_block", "nvfp4": "transpose_nvfp4", "mx": mx}[copy.scheme.family]
        self._move_scales(kind, copy.scales, out, tuple(out.shape))

    def _move_scales(self, kind: str, scales: torch.Tensor, out: torch.Tensor, shape: tuple[int, ...]) -> None:
        if not out.numel():
            return
        if not scales.numel():
            out.zero_()
            return
        rows, columns = shape
        sizes = {"source_rows": scales.shape[0], "source_columns": scales.shape[1]}
        named = {"scales": scales, "out": out, "rows": rows, "columns": columns, **sizes}
        self.launch(Launch.of(ScaleLayoutKernel(kind), named, rows, columns))


def _rng_tensor(rng, device) -> torch.Tensor | None:
    if rng is None or isinstance(rng, torch.Tensor):
        return rng
    signed = [(int(word) + _SIGN) % (2 * _SIGN) - _SIGN for word in rng]
    return torch.tensor(signed, dtype=torch.int64, device=device)
