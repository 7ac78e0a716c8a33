"""A planned call as one straight-line Python function: what a program runs for it, and what the eager kernels run.

All that is left to do at a call is to evaluate the sizes that are known only then.
"""

from collections.abc import Callable
from typing import Any

import torch

from steelyard.codegen.kernel import Kernel
from steelyard.codegen.launches.plan import (
    OPERAND,
    RESULT,
    TEMPORARY,
    Argument,
    Buffer,
    LaunchPlan,
    Memory,
    PlannedLaunch,
    TorchCall,
    Transposed,
)
from steelyard.codegen.sizes import Extent, IsZero, Product, Quotient, RuntimeSize, Size, Sum
from steelyard.runtime.cuda import gemm, groups
from steelyard.runtime.cuda.launches import Launch, Launcher
from steelyard.runtime.dtypes import DTYPES
from steelyard.runtime.ranks import largest_of_ranks

LauncherOn = Callable[[torch.device], Launcher]
_PREFIXES = {OPERAND: "a", RESULT: "r", TEMPORARY: "t"}
_VECTOR_BYTES = 16


def contiguous(x: torch.Tensor) -> torch.Tensor:
    """`x` in memory as launches expect it: contiguous, from a multiple of 16 bytes on; a copy where it is not."""
    if x.is_neg() or not x.is_contiguous():
        x = x.resolve_neg().contiguous()
    return x if x.data_ptr() % _VECTOR_BYTES == 0 else x.clone(memory_format=torch.contiguous_format)


class PlannedCall:
    """The functions of a plan, and their text.

    `run` takes the operands of a call and then its results, `allocate` makes the results from the operands.
    """

    def __init__(
        self, name: str, plan: LaunchPlan, operands: int, launcher_on: LauncherOn, pick: Callable | None = None
    ):
        emitter = _Emitter(plan, operands)
        self.text = f"{emitter.run(name)}\n\n{emitter.allocate(f'{name}_results')}"
        namespace: dict[str, Any] = {
            **emitter.namespace,
            "torch": torch,
            "Launch": Launch,
            "launcher_on": launcher_on,
            "copy": _copy,
            "product": _product,
            "scaled_product": _scaled_product,
            "batched_product": _batched_product,
            "grouped_product": _grouped_product,
            "product_of_groups": _product_of_groups,
            "largest_of_ranks": _largest_of_ranks,
            "pick_amax": _picking(pick),
        }
        exec(compile(self.text, f"<steelyard {name}>", "exec"), namespace)
        self.run: Callable[..., None] = namespace[name]
        self.allocate: Callable[..., tuple[torch.Tensor, ...]] = namespace[f"{name}_results"]


class _Emitter:
    def __init__(self, plan: LaunchPlan, operands: int):
        self._plan, self._operands = plan, [f"a{index}" for index in range(operands)]
        self.namespace: dict[str, Kernel] = {}
        for index, kernel in enumerate(plan.kernels):
            is_free = kernel.name.isidentifier() and kernel.name not in self.namespace
            self.namespace[kernel.name if is_free else f"kernel{index}"] = kernel
        self._kernels = {kernel: name for name, kernel in self.namespace.items()}
        self._sizes: dict[RuntimeSize, str] = {}
        self._lines: list[str] = []

    def run(self, name: str) -> str:
        """The function that makes the launches."""
        self._begin()
        if self._plan.kernels:
            self._lines.append("launch = launcher_on(a0.device)")
        for index, memory in enumerate(self._plan.temporaries):
            self._lines.append(f"t{index} = {self._empty(memory)}")
        for step in self._plan.steps:
            self._launch(step) if isinstance(step, PlannedLaunch) else self._call(step)
        return self._function(name, [*self._operands, *(f"r{index}" for index in range(len(self._plan.results)))])

    def allocate(self, name: str) -> str:
        """The function that makes the results."""
        self._begin()
        made = [self._empty(memory) for memory in self._plan.results]
        self._lines.append(f"return ({''.join(f'{one}, ' for one in made)})")
        return self._function(name, self._operands)

    def _begin(self) -> None:
        self._sizes.clear()
        self._lines = []

    def _function(self, name: str, arguments: list[str]) -> str:
        body = "".join(f"    {line}\n" for line in self._lines or ["pass"])
        return f"def {name}({', '.join(arguments)}):\n{body}"

    def _launch(self, step: PlannedLaunch) -> None:
        arguments = "".join(f"{self._argument(argument)}, " for argument in step.arguments)
        blocks = self._size(step.blocks)
        guard = f"if {blocks}: " if isinstance(step.blocks, RuntimeSize) else ""
        self._lines.append(f"{guard}launch(Launch({self._kernels[step.kernel]}, ({arguments}), {blocks}))")

    def _call(self, step: TorchCall) -> None:
        arguments = [self._argument(argument) for argument in step.arguments]
        if step.function == "zero":
            self._lines.append(f"{arguments[0]}.zero_()")
        else:
            self._lines.append(f"{step.function}({', '.join(arguments)})")

    def _empty(self, memory: Memory) -> str:
        shape = "".join(f"{self._size(size)}, " for size in memory.shape)
        return f"torch.empty(({shape}), dtype={DTYPES[memory.dtype]}, device=a0.device)"

    def _argument(self, argument: Argument) -> str:
        if isinstance(argument, Buffer):
            return f"{_PREFIXES[argument.place]}{argument.index}"
        if isinstance(argument, Transposed):
            return f"{self._argument(argument.buffer)}.mT"
        return self._size(argument)

    def _size(self, size: Size) -> str:
        """A number, or the variable of an expression, which is evaluated once."""
        if isinstance(size, int):
            return str(size)
        if size not in self._sizes:
            text = self._expression(size)
            self._sizes[size] = f"n{len(self._sizes)}"
            self._lines.append(f"{self._sizes[size]} = {text}")
        return self._sizes[size]

    def _expression(self, size: RuntimeSize) -> str:
        if isinstance(size, Extent):
            return f"a{size.operand}" if size.dim is None else f"a{size.operand}.size({size.dim})"
        if isinstance(size, Sum):
            return f"{self._size(size.size)} + {size.constant}"
        if isinstance(size, IsZero):
            return f"int({self._size(size.size)} == 0)"
        if isinstance(size, Product):
            return f"{self._size(size.left)} * {self._size(size.right)}"
        assert isinstance(size, Quotient)
        dividend, divisor = self._size(size.dividend), self._size(size.divisor)
        rest = f" if {divisor} else 0" if isinstance(size.divisor, RuntimeSize) else ""
        return f"{dividend} // {divisor}{rest}"


def _copy(source: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(source.reshape(out.shape) if source.dim() else source)


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    gemm.multiply_decoded(left.reshape(-1, left.shape[-1]), right.t(), out.view(-1, out.shape[-1]))


def _scaled_product(left, right, left_scale, left_range, right_scale, right_range, out: torch.Tensor) -> None:
    """A product whose sums are multiplied by scales of either side; a range of 0 stands for no scale."""
    outer = [
        gemm.OuterScale(scale, by) if by else None
        for scale, by in ((left_scale, left_range), (right_scale, right_range))
    ]
    gemm.multiply_decoded(left.reshape(-1, left.shape[-1]), right.t(), out.view(-1, out.shape[-1]), *outer)


def _batched_product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, count: int) -> None:
    if out.numel():
        left, right = (matrix.view(count, -1, matrix.shape[-1]) for matrix in (left, right))
        gemm.multiply_decoded(left, right.mT, out.view(count, -1, out.shape[-1]))


def _grouped_product(left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor, multiple: int, out) -> None:
    groups.multiply_at_once(left, right, ends, out, multiple=multiple)


def _product_of_groups(left, right, ends, multiple, left_scale, left_range, left_each, *others) -> None:
    """One product after the other, with scales of either side; a range of 0 stands for no scale."""
    right_scale, right_range, right_each, out = others
    scales = [
        groups.GroupScale(scale, by, each) if by else None
        for scale, by, each in ((left_scale, left_range, left_each), (right_scale, right_range, right_each))
    ]
    groups.multiply_one_by_one(left, right, ends, out, *scales, multiple=multiple)


def _largest_of_ranks(amax: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(largest_of_ranks(amax))


def _picking(algorithm: Callable | None) -> Callable | None:
    """What a user's own algorithm picks of a history; 0 where the newest amax is 0, which leaves the scale."""
    if algorithm is None:
        return None

    def pick_amax(history: torch.Tensor, amax: torch.Tensor, out: torch.Tensor) -> None:
        with_newest = history.clone()
        with_newest[0] = amax
        # Experts have a column each.
        columns = with_newest.reshape(len(history), -1).unbind(1)
        picked = [torch.as_tensor(algorithm(own), dtype=torch.float32, device=amax.device) for own in columns]
        found = torch.stack([one.reshape(()) for one in picked]).reshape(amax.shape)
        out.copy_(torch.where(amax == 0, amax, found))

    return pick_amax
