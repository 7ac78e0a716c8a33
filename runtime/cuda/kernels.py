"""The functions of `steelyard.reference` on generated kernels, the same bytes: each plans launches and makes them.

The plans are those that compiled programs run; here they are made from the tensors at hand. Nothing here needs a GPU:
what a launch does is its launcher's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from steelyard.codegen.launches import copies as copy_plans
from steelyard.codegen.launches import quantize as quantize_plans
from steelyard.codegen.launches.grouped import fill_groups
from steelyard.codegen.launches.groups import Groups
from steelyard.codegen.launches.plan import OPERAND, RESULT, Buffer, Memory, PlanBuilder
from steelyard.codegen.launches.products import finish_product, multiply_into
from steelyard.codegen.launches.sources import Filling, fill_from, fill_from_producer
from steelyard.codegen.launches.state import compute_scale_into, update_scale_into
from steelyard.codegen.launches.values import VECTOR_BYTES, Matrix, StoredCopy, Vector
from steelyard.errors import ConstraintError
from steelyard.formats.checks import amax_pair, check_amax_options, check_input, check_scheme
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import grouped_part_shapes
from steelyard.formats.schemes import Scheme
from steelyard.runtime.cuda.launches import LARGEST, Launcher
from steelyard.runtime.cuda.planned import PlannedCall

_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_SIGN = 1 << 63
_PARTS = ("codes", "scales", "amax")


@dataclass(frozen=True)
class Kernels:
    """The kernels of one device, made and launched by `launch`."""

    launch: Launcher

    def amax(self, x: torch.Tensor, *, rht: bool = False, per_row: bool = False) -> torch.Tensor:
        """Largest magnitude of `x`, of each row, or after the transform of its columns; NaN if `x` holds one."""
        check_amax_options(rht=rht, per_row=per_row)
        call = _Call()
        filling = fill_from([call.matrix(x)])
        out = call.result((filling.rows,) if per_row else ())
        quantize_plans.find_amax(call.plan, filling, out, columnwise=rht, rht=rht, per_line=per_row)
        return call.run(self.launch)[0]

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
        call = _Call()
        return self._quantize(call, fill_from([call.matrix(x)]), x.device, (row, col), scale, amax, rng)

    def quantize_groups(
        self,
        x: torch.Tensor,
        ends: torch.Tensor | None,
        row: Scheme | None,
        col: Scheme | None,
        *,
        scale: torch.Tensor | None = None,
        rng: torch.Tensor | tuple[int, int] | None = None,
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The parts of the copies of all groups of rows, or of all matrices of a stack, which has no ends."""
        call = _Call()
        count = x.shape[0] if ends is None else ends.shape[0]
        given = [(scheme, bool(index)) for index, scheme in enumerate((row, col)) if scheme is not None]
        source = fill_from([call.matrix(x)])
        filling = fill_groups(source, x.shape[-2], Groups(count, call.optional(ends)), given)
        shape = filling.rows, filling.columns
        copies = [call.made_groups(scheme, shape, tuple(x.shape), columnwise, count) for scheme, columnwise in given]
        random = call.optional(_rng_tensor(rng, x.device))
        quantize_plans.quantize_into(call.plan, filling, copies, scale=call.optional(scale), rng=random)
        made = call.run(self.launch)
        found = {
            copy.columnwise: {n: made[b.index] for n in _PARTS if (b := getattr(copy, n)) is not None}
            for copy in copies
        }
        return found.get(False, {}), found.get(True, {})

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
        call = _Call()
        filling = call.filling(producer, inputs)
        return self._quantize(call, filling, inputs[0].device, (row, col), scale, amax, rng)

    def produce(self, producer: str, inputs: tuple) -> torch.Tensor:
        """What a producer makes of inputs of one dtype, computed in float32 and rounded to it.

        Producers and inputs: "relu", "gelu", "gelu_tanh", "silu" (x,); "silu_and_multiply", "add" (a, b);
        "layer_norm" (x, weight, bias, epsilon) and "rms_norm" (x, weight, epsilon) over the last dim, None for no
        weight or bias.
        """
        call = _Call()
        filling = call.filling(producer, inputs)
        out = call.result(tuple(inputs[0].shape), filling.source.dtype)
        quantize_plans.produce_into(call.plan, filling, out)
        return call.run(self.launch)[0]

    def dequantize(
        self, copy: QuantizedCopy, dtype: torch.dtype = torch.float32, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The values of a copy as a logical (M, N) matrix; the random Hadamard transform is undone."""
        if out is None:
            out = torch.empty(copy.shape, dtype=dtype, device=copy.codes.device)
        call = _Call()
        copy_plans.dequantize_into(call.plan, call.copy(copy), call.given_matrix(out))
        return call.run(self.launch)[0]

    def emulate(self, a: QuantizedCopy | torch.Tensor, b: QuantizedCopy, out: torch.Tensor) -> None:
        """`a b^T` into `out` as an emulated GEMM computes it; `a` may be a matrix that is not quantized."""
        call = _Call()
        left = call.matrix(a) if isinstance(a, torch.Tensor) else call.copy(a)
        multiply_into(call.plan, left, call.copy(b), call.given_matrix(out).buffer, None)
        call.run(self.launch)

    def transpose(self, copy: QuantizedCopy) -> QuantizedCopy:
        """The copy of the other usage, from the codes."""
        call = _Call()
        other = call.made_copy(copy.scheme, copy.shape, columnwise=not copy.columnwise)
        copy_plans.transpose_into(call.plan, call.copy(copy), other)
        return _quantized(other, call.run(self.launch))

    def transpose_codes(self, codes: torch.Tensor) -> torch.Tensor:
        """The transpose of a matrix of bytes."""
        rows, columns = codes.shape
        call = _Call()
        out = call.result((columns, rows), "ui8")
        copy_plans.turn_codes(call.plan, call.operand(codes), out, rows, columns, aligned=_begins_aligned(codes))
        return call.run(self.launch)[0]

    def swizzle(self, copy: QuantizedCopy) -> torch.Tensor:
        """The scales in the layout that GPU GEMMs read, padded with zeros; for MX and NVFP4 the order of its bytes."""
        return self.swizzle_scales(copy.scales, copy.scheme, columnwise=copy.columnwise)

    def swizzle_scales(self, scales: torch.Tensor, scheme: Scheme, *, columnwise: bool) -> torch.Tensor:
        """`swizzle` of the scales of a copy."""
        call = _Call()
        sizes = (scales.shape[0], scales.shape[1]) if scales.dim() == 2 else (1, 1)
        shape = copy_plans.swizzled_shape(scheme, columnwise, sizes)
        out = call.result(shape, "f32" if scheme.scale == "f32" else "ui8")
        copy_plans.swizzle_into(call.plan, scheme, columnwise, call.operand(scales), sizes, out)
        return call.run(self.launch)[0]

    def epilogue(
        self,
        source: torch.Tensor,
        out: torch.Tensor,
        *,
        activation: str = "none",
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        preactivation: torch.Tensor | None = None,
    ) -> None:
        """What the fused store of a GEMM leaves in `out`, from a float32 product of any strides.

        `activation(source + bias) + residual`; `preactivation` takes `source + bias`.
        """
        call = _Call()
        given = {"source": source, "residual": residual}
        matrices = {name: call.matrix(matrix) for name, matrix in given.items() if matrix is not None}
        vector = None if bias is None else call.vector(bias)
        outs = tuple(call.given_matrix(matrix) for matrix in (out, preactivation) if matrix is not None)
        finish_product(call.plan, matrices, vector, outs, activation)
        call.run(self.launch)

    def compute_scale(self, amax: torch.Tensor, scheme: Scheme) -> torch.Tensor:
        """The scale that follows from a tensor's amax."""
        call = _Call()
        compute_scale_into(call.plan, scheme, call.operand(amax), call.result(()))
        return call.run(self.launch)[0]

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
        """The scale and history of the next step, with `amax` the newest; nothing changes where it is 0.

        Experts have a scale each, and a column of the history.
        """
        if algorithm not in ("max", "most_recent"):
            raise ConstraintError(
                "update_scale_algorithm", f"algorithm must be max or most_recent on CUDA, got {algorithm!r}"
            )
        call = _Call()
        state = call.operand(scale), call.operand(history)
        outs = call.result(tuple(scale.shape)), call.result(tuple(history.shape))
        shape, options = tuple(history.shape), {"margin": margin, "algorithm": algorithm}
        update_scale_into(call.plan, scheme, state, call.operand(amax), outs, shape, **options)
        new_scale, new_history = call.run(self.launch)
        return new_scale, new_history

    def _quantize(self, call: "_Call", filling: Filling, device, schemes, scale, amax, rng):
        amaxes = amax_pair(amax, *schemes)
        copies = []
        for columnwise, scheme in enumerate(schemes):
            if scheme is not None:
                check_scheme(scheme, columnwise=bool(columnwise), scale=scale, rng=rng)
                shape = filling.rows, filling.columns
                copies.append(call.made_copy(scheme, shape, columnwise=bool(columnwise)))
        given = [amaxes[copy.columnwise] for copy in copies]
        quantize_plans.quantize_into(
            call.plan,
            filling,
            copies,
            scale=call.optional(scale),
            amaxes=[call.optional(one) for one in given],
            rng=call.optional(_rng_tensor(rng, device)),
        )
        made = call.run(self.launch)
        found = {copy.columnwise: _quantized(copy, made) for copy in copies}
        return found.get(False), found.get(True)


class _Call:
    """A plan in the making, with the tensors that it is made for."""

    def __init__(self) -> None:
        self.plan = PlanBuilder()
        self._operands: list[torch.Tensor] = []
        self._results: list[Memory] = []
        self._given: dict[int, torch.Tensor] = {}

    def operand(self, tensor: torch.Tensor) -> Buffer:
        """A tensor that is read."""
        self._operands.append(tensor)
        return Buffer(OPERAND, len(self._operands) - 1)

    def optional(self, tensor: torch.Tensor | None) -> Buffer | None:
        return None if tensor is None else self.operand(tensor)

    def result(self, shape: tuple, dtype: str = "f32") -> Buffer:
        """A tensor that is made."""
        self._results.append(Memory(shape, dtype))
        return Buffer(RESULT, len(self._results) - 1)

    def matrix(self, x: torch.Tensor) -> Matrix:
        """A tensor as a matrix, its leading dims flattened, wherever and however it lies in memory."""
        matrix = _flattened(x)
        rows, columns = matrix.shape
        across, along = matrix.stride()
        aligned = _begins_aligned(matrix)
        return Matrix(self.operand(matrix), _NAMES[x.dtype], rows, columns, across, along, aligned)

    def vector(self, x: torch.Tensor) -> Vector:
        return Vector(self.operand(x), _NAMES[x.dtype], x.stride(0), _begins_aligned(x))

    def given_matrix(self, out: torch.Tensor) -> Matrix:
        """A contiguous tensor that a result is written to."""
        matrix = _flattened(out)
        buffer = self.result(tuple(out.shape), _NAMES[out.dtype])
        self._given[buffer.index] = out
        return replace(Matrix.contiguous(buffer, _NAMES[out.dtype], *matrix.shape), begins_aligned=_begins_aligned(out))

    def copy(self, copy: QuantizedCopy) -> StoredCopy:
        """A copy that is read."""
        codes, scales, amax = self.operand(copy.codes), self.operand(copy.scales), self.optional(copy.amax)
        aligned = _begins_aligned(copy.codes)
        return StoredCopy(copy.scheme, copy.columnwise, copy.shape, codes, scales, amax, aligned)

    def made_copy(self, scheme: Scheme, shape, *, columnwise: bool) -> StoredCopy:
        """A copy that is made."""
        parts = copy_plans.part_memory(scheme, shape, columnwise)
        buffers = {name: self.result(memory.shape, memory.dtype) for name, memory in parts.items()}
        return StoredCopy(scheme, columnwise, shape, buffers["codes"], buffers["scales"], buffers.get("amax"))

    def made_groups(self, scheme: Scheme, shape, whole: tuple[int, ...], columnwise: bool, groups: int) -> StoredCopy:
        """A copy that is made of a tensor in groups, of the whole tensor's shape."""
        parts = grouped_part_shapes(scheme, whole, columnwise, groups)
        buffers = {
            name: self.result(sizes, "ui8" if dtype == "i8" else dtype) for name, (sizes, dtype) in parts.items()
        }
        return StoredCopy(scheme, columnwise, shape, buffers["codes"], buffers["scales"], buffers.get("amax"))

    def filling(self, producer: str, inputs: tuple) -> Filling:
        """What a producer makes of its inputs."""
        if not producer.endswith("_norm"):
            return fill_from_producer(self.plan, producer, [self.matrix(x) for x in inputs], {}, 0.0)
        x, *vectors, epsilon = inputs
        names = ("weight", "bias")[: len(vectors)]
        given = {name: self.vector(v) for name, v in zip(names, vectors, strict=True) if v is not None}
        return fill_from_producer(self.plan, producer, [self.matrix(x)], given, epsilon)

    def run(self, launcher: Launcher) -> Sequence[torch.Tensor]:
        """Make the launches; the results."""
        plan = self.plan.finish(self._results)
        call = PlannedCall("call", plan, len(self._operands), lambda _: launcher)
        results = list(call.allocate(*self._operands))
        for index, tensor in self._given.items():
            results[index] = tensor
        call.run(*self._operands, *results)
        return results


def _flattened(x: torch.Tensor) -> torch.Tensor:
    check_input(x)
    matrix = x.detach().resolve_neg()
    matrix = matrix if x.dim() == 2 else matrix.reshape(x.shape[:-1].numel(), x.shape[-1])
    if max(matrix.shape) > LARGEST:
        raise ConstraintError("quantize_input", f"rows and columns must fit 31 bits, got {tuple(matrix.shape)}")
    return matrix


def _begins_aligned(tensor: torch.Tensor) -> bool:
    return tensor.data_ptr() % VECTOR_BYTES == 0


def _quantized(copy: StoredCopy, made: Sequence[torch.Tensor]) -> QuantizedCopy:
    buffers = [getattr(copy, name) for name in _PARTS]
    codes, scales, amax = (None if buffer is None else made[buffer.index] for buffer in buffers)
    return QuantizedCopy(codes, scales, amax, copy.scheme, copy.shape, copy.columnwise)  # pyright: ignore[reportArgumentType]


def _rng_tensor(rng, device) -> torch.Tensor | None:
    if rng is None or isinstance(rng, torch.Tensor):
        return rng
    signed = [(int(word) + _SIGN) % (2 * _SIGN) - _SIGN for word in rng]
    return torch.tensor(signed, dtype=torch.int64, device=device)
