"""What a kernel is: parameters, threads, and a body that appends operations to a GPU function."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch_mlir import ir

from steelyard.codegen.memory import GLOBAL, SHARED, SHARED_SYMBOL, Pointer, SharedMemory, block_index
from steelyard.codegen.memory import thread_index as read_thread_index
from steelyard.codegen.sizes import Size
from steelyard.codegen.values import Value, integer, type_of
from steelyard.targets.architectures import Target

POINTER = "pointer"
LOADS_IN_FLIGHT = 4


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: a `pointer` to global memory, an i32 or an i64."""

    name: str
    type: str = POINTER


class Kernel(ABC):
    """A kernel as plain data: equal ones have the same code."""

    threads: int = 128
    loads_in_flight: int = LOADS_IN_FLIGHT
    """Independent loads that a thread makes before it waits for the first."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of its entry, readable in profilers."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[Parameter, ...]: ...

    @abstractmethod
    def blocks(self, rows: Size, columns: Size) -> Size:
        """How many blocks of threads a matrix takes."""

    @abstractmethod
    def body(self, scope: "Scope") -> None:
        """Append the kernel's operations."""


class TileKernel(Kernel):
    """A kernel whose blocks each take a square tile of a matrix; tiles are numbered along rows. `rows` and `columns` of
    the matrix are parameters."""

    @property
    @abstractmethod
    def side(self) -> int:
        """Rows and columns of a tile."""

    @property
    @abstractmethod
    def shared_rows(self) -> dict[str, int]:
        """How a tensor in groups lies behind each pointer of which every group has its own part: so many rows share
        what is stored, or with 0 each group takes the same."""


@dataclass(frozen=True)
class Scope:
    """What a body works with: the arguments by name, the thread, shared memory, the target, and of a tensor in groups
    the number of the group."""

    arguments: dict[str, Value]
    thread: Value
    block: Value
    shared: SharedMemory
    target: Target
    group: Value | None = None

    def pointer(self, name: str) -> Pointer:
        return Pointer(self.arguments[name])

    def __getitem__(self, name: str) -> Value:
        return self.arguments[name]


def build_module(kernel: Kernel, target: Target) -> tuple[ir.Module, int]:
    """A module with the kernel in a `gpu.module`, and the bytes of shared memory it takes."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            shared_bytes = append_gpu_module(kernel, target, "kernels")
        return module, shared_bytes


def append_gpu_module(kernel: Kernel, target: Target, symbol: str) -> int:
    """Add a `gpu.module` with the kernel at the current place; the bytes of shared memory it takes."""
    gpu_module = ir.Operation.create("gpu.module", attributes={"sym_name": ir.StringAttr.get(symbol)}, regions=1)
    with ir.InsertionPoint(gpu_module.regions[0].blocks.append()):
        return append_entry(kernel, target)


def append_entry(kernel: Kernel, target: Target) -> int:
    """Add the kernel's function to the current `gpu.module`; the bytes of shared memory it takes."""
    _declare_shared_memory()
    return _append_function(kernel, target)


def _declare_shared_memory() -> None:
    linkage = ir.Attribute.parse("#llvm.linkage<external>")
    ir.Operation.create(
        "llvm.mlir.global",
        attributes={
            "sym_name": ir.StringAttr.get(SHARED_SYMBOL),
            "global_type": ir.TypeAttr.get(ir.Type.parse("!llvm.array<0 x i8>")),
            "linkage": linkage,
            "addr_space": ir.IntegerAttr.get(integer(32), SHARED),
            "alignment": ir.IntegerAttr.get(integer(64), 16),
        },
        regions=1,
    )


def _append_function(kernel: Kernel, target: Target) -> int:
    types = [_mlir_type(parameter.type) for parameter in kernel.parameters]
    function = ir.Operation.create(
        "gpu.func",
        attributes={
            "sym_name": ir.StringAttr.get(kernel.name),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
            "gpu.kernel": ir.UnitAttr.get(),
            "known_block_size": ir.DenseI32ArrayAttr.get([kernel.threads, 1, 1]),
        },
        regions=1,
    )
    block = function.regions[0].blocks.append(*types)
    names = [parameter.name for parameter in kernel.parameters]
    with ir.InsertionPoint(block):
        arguments = dict(zip(names, map(Value, block.arguments), strict=True))
        scope = Scope(arguments, read_thread_index(kernel.threads), block_index(), SharedMemory(), target)
        kernel.body(scope)
        ir.Operation.create("gpu.return")
    return scope.shared.size


def _mlir_type(name: str) -> ir.Type:
    return ir.Type.parse(f"!llvm.ptr<{GLOBAL}>") if name == POINTER else type_of(name)
