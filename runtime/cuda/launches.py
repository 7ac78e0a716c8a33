"""What is launched: a kernel, the tensors and numbers it is given, and how many blocks."""

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from steelyard.codegen.copies import Copy
from steelyard.codegen.kernel import POINTER, Kernel
from steelyard.codegen.producers import Producer
from steelyard.codegen.sources import Source
from steelyard.errors import ConstraintError
from steelyard.formats.checks import check_input
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import BYTES, FLOATS, part_shapes
from steelyard.formats.schemes import Scheme
from steelyard.targets.architectures import Target

DTYPE_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_PART_DTYPES = {BYTES: torch.uint8, FLOATS: torch.float32}
_VECTOR_BYTES = 16
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments in the order of its parameters."""

    kernel: Kernel
    arguments: tuple[torch.Tensor | int, ...]
    blocks: int

    @classmethod
    def of(cls, kernel: Kernel, named: dict[str, torch.Tensor | int], rows: int, columns: int) -> "Launch":
        """Arguments by name, those that the kernel has no parameter for left out."""
        arguments = tuple([named[name] for name, _ in _signature(kernel)])
        return cls(kernel, arguments, kernel.blocks(rows, columns))

    def words(self) -> list[tuple[int, int]]:
        """Each argument as a number and its bytes."""
        pairs = zip(self.arguments, _signature(self.kernel), strict=True)
        return [(a.data_ptr() if isinstance(a, torch.Tensor) else a, size) for a, (_, size) in pairs]


@cache
def _signature(kernel: Kernel) -> tuple[tuple[str, int], ...]:
    """Name and bytes of each parameter."""
    sizes = {POINTER: 8, "i64": 8, "i32": 4}
    return tuple((parameter.name, sizes[parameter.type]) for parameter in kernel.parameters)


class Launcher(Protocol):
    """What makes launches happen, for a target."""

    target: Target

    def __call__(self, launch: Launch, /) -> None: ...


@dataclass(frozen=True)
class MatrixInput:
    """A matrix that tiles are filled from, with the arguments that its source takes."""

    source: Source
    named: dict[str, torch.Tensor | int]
    shape: tuple[int, int]


def flattened(x: torch.Tensor) -> torch.Tensor:
    """`x` as a matrix, its leading dims flattened."""
    check_input(x)
    matrix = x.detach().resolve_neg()
    matrix = matrix if x.dim() == 2 else matrix.reshape(x.shape[:-1].numel(), x.shape[-1])
    if max(matrix.shape) > _LARGEST - 128:
        raise ConstraintError("quantize_input", f"rows and columns must fit 31 bits, got {tuple(matrix.shape)}")
    return matrix


def matrix_input(matrices: list[torch.Tensor], producer: Producer | None = None, **named) -> MatrixInput:
    """One or two matrices of one shape and dtype; `named` is what the producer takes beside them."""
    rows, columns = matrices[0].shape
    aligned = all(is_aligned(matrix) for matrix in matrices)
    arguments: dict[str, torch.Tensor | int] = {"rows": rows, "columns": columns, **named}
    for index, matrix in enumerate(matrices):
        arguments[f"input{index}"] = matrix
        arguments[f"row_stride{index}"], arguments[f"column_stride{index}"] = matrix.stride()
    return MatrixInput(Source(DTYPE_NAMES[matrices[0].dtype], aligned, producer), arguments, (rows, columns))


def is_aligned(matrix: torch.Tensor) -> bool:
    """Its rows are whole vectors at aligned addresses."""
    row_bytes = matrix.stride(0) * matrix.element_size()
    begin = matrix.data_ptr() | row_bytes
    whole = matrix.shape[1] * matrix.element_size() % _VECTOR_BYTES == 0
    return matrix.stride(1) == 1 and whole and begin % _VECTOR_BYTES == 0


def copy_spec(copy: QuantizedCopy, *, given_scale: bool = False) -> Copy:
    """How a copy is made or read; aligned where its lines are whole chunks of 16 codes."""
    aligned = copy.stored_shape[1] % 16 == 0 and copy.codes.data_ptr() % _VECTOR_BYTES == 0
    return Copy(copy.scheme, copy.columnwise, aligned, given_scale and copy.scheme.family == "tensor")


def empty_copy(scheme: Scheme, shape: tuple[int, int], *, columnwise: bool, device: torch.device) -> QuantizedCopy:
    """A copy with memory and no values yet."""
    parts = {
        name: torch.empty([size or 0 for size in sizes], dtype=_PART_DTYPES[dtype], device=device)
        for name, (sizes, dtype) in part_shapes(scheme, shape, columnwise).items()
    }
    return QuantizedCopy(parts["codes"], parts["scales"], parts.get("amax"), scheme, shape, columnwise)
