"""Pointers, vectors of 32-bit words, shared memory, and what threads say to each other."""

from dataclasses import dataclass

from torch_mlir import ir

from steelyard.codegen.values import Value, constant, i32, integer, operation, type_of, vector_of, when

GLOBAL, SHARED = 1, 3
SHARED_SYMBOL = "shared_memory"
_ALL_LANES = 0xFFFFFFFF


@dataclass(frozen=True)
class Pointer:
    """An address in global or shared memory; offsets are in bytes."""

    address: Value

    def at(self, offset: Value | int) -> "Pointer":
        index = offset if isinstance(offset, Value) else i32(offset)
        dynamic = ir.DenseI32ArrayAttr.get([-(2**31)])
        element = ir.TypeAttr.get(integer(8))
        address = operation(
            "llvm.getelementptr",
            [self.address, index],
            self.address.type,
            rawConstantIndices=dynamic,
            elem_type=element,
            noWrapFlags=ir.IntegerAttr.get(integer(32), 0),
        )
        return Pointer(address)

    def load(self, name: str) -> Value:
        """A scalar of the named type, aligned to its size."""
        return self._load(type_of(name), _bytes(name))

    def store(self, value: Value) -> None:
        size = value.type.width // 8  # pyright: ignore[reportAttributeAccessIssue]
        self._store(value, size)

    def load_words(self, count: int) -> list[Value]:
        """Neighbouring 32-bit words in one access, aligned to its size."""
        if count == 1:
            return [self.load("i32")]
        vector = self._load(ir.VectorType.get([count], integer(32)), 4 * count)
        return [extract(vector, index, "i32") for index in range(count)]

    def store_words(self, words: list[Value]) -> None:
        if len(words) == 1:
            return self.store(words[0])
        return self._store(vector_of(words), 4 * len(words))

    def raise_to(self, value: Value) -> None:
        """Atomically the larger of an unsigned word and `value`."""
        operation(
            "llvm.atomicrmw",
            [self.address, value],
            value.type,
            bin_op=ir.IntegerAttr.get(integer(64), 9),
            ordering=ir.IntegerAttr.get(integer(64), 2),
        )

    def _load(self, type_: ir.Type, alignment: int) -> Value:
        return operation("llvm.load", [self.address], type_, **_access(alignment))

    def _store(self, value: Value, alignment: int) -> None:
        operation("llvm.store", [value, self.address], None, **_access(alignment))


@dataclass
class SharedMemory:
    """Hands out parts of a block's shared memory; how much is needed in all is known when the kernel is built."""

    size: int = 0

    def allocate(self, size: int) -> Pointer:
        begin = self.size
        self.size = -(-(begin + size) // 16) * 16
        symbol = ir.FlatSymbolRefAttr.get(SHARED_SYMBOL)
        pointer = ir.Type.parse(f"!llvm.ptr<{SHARED}>")
        return Pointer(operation("llvm.mlir.addressof", [], pointer, global_name=symbol)).at(begin)


def extract(vector: Value, index: int, name: str) -> Value:
    return operation("llvm.extractelement", [vector, i32(index)], type_of(name))


def thread_index(threads: int) -> Value:
    bounds = ir.Attribute.parse(f"#llvm.constant_range<i32, 0, {threads}>")
    return operation("nvvm.read.ptx.sreg.tid.x", [], integer(32), range=bounds)


def block_index() -> Value:
    return operation("nvvm.read.ptx.sreg.ctaid.x", [], integer(32))


def barrier() -> None:
    """Every thread of the block waits for the others."""
    operation("nvvm.barrier", [], None, operandSegmentSizes=ir.DenseI32ArrayAttr.get([0, 0]))


def shuffle_xor(value: Value, distance: int) -> Value:
    """The value of the lane whose number differs in one bit."""
    kind = ir.Attribute.parse("#nvvm<shfl_kind bfly>")
    lanes, last = constant(_ALL_LANES, "i32"), i32(31)
    return operation("nvvm.shfl.sync", [lanes, value, i32(distance), last], value.type, kind=kind)


def shuffle_from(value: Value, lane: Value) -> Value:
    """The value of one lane, for all."""
    kind = ir.Attribute.parse("#nvvm<shfl_kind idx>")
    lanes, last = constant(_ALL_LANES, "i32"), i32(31)
    return operation("nvvm.shfl.sync", [lanes, value, lane, last], value.type, kind=kind)


def warp_maximum(value: Value) -> Value:
    """The largest unsigned word of a warp."""
    kind = ir.Attribute.parse("#nvvm<reduction_kind umax>")
    return operation("nvvm.redux.sync", [value, constant(_ALL_LANES, "i32")], value.type, kind=kind)


def first_lane(thread: Value, body) -> None:
    """Run `body` in one lane of each warp."""
    when((thread & 31).equals(0), body)


def _bytes(name: str) -> int:
    return max(int(name.strip("bfi")) // 8, 1)


def _access(alignment: int) -> dict[str, ir.Attribute]:
    return {
        "alignment": ir.IntegerAttr.get(integer(64), alignment),
        "ordering": ir.IntegerAttr.get(integer(64), 0),
    }
