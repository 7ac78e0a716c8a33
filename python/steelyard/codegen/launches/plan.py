"""What a call of a kernel does on a GPU, planned when a program is compiled: its launches, in order.

A plan has no tensors: its arguments name the operands and results of the call, the memory that it takes in between,
and sizes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steelyard.codegen.kernel import Kernel
from steelyard.codegen.sizes import Size

OPERAND, RESULT, TEMPORARY = "operand", "result", "temporary"


@dataclass(frozen=True)
class Buffer:
    """A tensor of a call: one of its operands, of its results, or of its temporaries."""

    place: str
    index: int


@dataclass(frozen=True)
class Transposed:
    """A matrix that is read by columns."""

    buffer: Buffer


Argument = Buffer | Transposed | Size


@dataclass(frozen=True)
class Memory:
    """What is allocated."""

    shape: tuple[Size, ...]
    dtype: str = "f32"


@dataclass(frozen=True)
class PlannedLaunch:
    """A generated kernel with its arguments in the order of its parameters; with no blocks nothing is launched."""

    kernel: Kernel
    arguments: tuple[Argument, ...]
    blocks: Size


@dataclass(frozen=True)
class TorchCall:
    """Something that torch does to its arguments, written into the last tensor; see `scaled.torch_call`."""

    function: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class LaunchPlan:
    """The steps of a call, and the memory that they write."""

    results: tuple[Memory, ...]
    temporaries: tuple[Memory, ...]
    steps: tuple[PlannedLaunch | TorchCall, ...]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The generated kernels that are launched, each once."""
        return tuple(dict.fromkeys(step.kernel for step in self.steps if isinstance(step, PlannedLaunch)))


class PlanBuilder:
    """Collects the steps of a plan."""

    def __init__(self) -> None:
        self._temporaries: list[Memory] = []
        self._steps: list[PlannedLaunch | TorchCall] = []

    def temporary(self, *shape: Size, dtype: str = "f32") -> Buffer:
        """Memory for values that only this call needs."""
        self._temporaries.append(Memory(shape, dtype))
        return Buffer(TEMPORARY, len(self._temporaries) - 1)

    def launch(self, kernel: Kernel, named: Mapping[str, Argument], rows: Size, columns: Size) -> None:
        """Launch a kernel over a matrix; arguments that it has no parameter for are left out."""
        self.launch_blocks(kernel, named, kernel.blocks(rows, columns))

    def launch_blocks(self, kernel: Kernel, named: Mapping[str, Argument], blocks: Size) -> None:
        """Launch a number of blocks; nothing where it is known to be 0."""
        if blocks != 0:
            arguments = tuple(named[parameter.name] for parameter in kernel.parameters)
            self._steps.append(PlannedLaunch(kernel, arguments, blocks))

    def call(self, function: str, *arguments: Argument) -> None:
        """Let torch do something; see `scaled.torch_call`."""
        self._steps.append(TorchCall(function, arguments))

    def finish(self, results: Sequence[Memory]) -> LaunchPlan:
        """The plan of a call with these results."""
        return LaunchPlan(tuple(results), tuple(self._temporaries), tuple(self._steps))
