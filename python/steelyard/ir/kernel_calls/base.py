"""What all calls of kernels have in common."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, Self, TypeVar, get_args

from torch_mlir import ir

from steelyard.dialect.base import require
from steelyard.dialect.types import Shape, TensorInfo, tensor_info
from steelyard.errors import ConstraintError
from steelyard.formats.parts import PARTS, Part
from steelyard.ir.attributes import CONFIG, DESTINATIONS, DEVICE, KERNEL, OPERANDS, RESULTS
from steelyard.ir.kernel_calls.copies import CopySlots
from steelyard.ir.kernel_calls.settings import OWN, read_settings, write_settings

Device = Literal["cpu", "cuda", "custom"]
"""What runs a call; `custom` is a user's own quantizer."""
DEVICES: tuple[Device, ...] = get_args(Device)

SIZE = "size"
"""The name of each operand that is a size known only at run time; they are the last operands of a call."""

OPERATIONS: "dict[str, type[KernelCall]]" = {}
"""The class of each operation, by its name in the IR."""

_Kind = TypeVar("_Kind", bound=ir.Attribute)


@dataclass(frozen=True)
class Slot:
    """An operand or a result of a call."""

    name: str
    type: ir.Type = field(repr=False)


@dataclass(frozen=True)
class Names:
    """Which operands or results an operation has."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    """Those that are no plain tensors: only a user's quantizer understands them."""


@dataclass(frozen=True, kw_only=True)
class KernelCall:
    """One operation on plain tensors; the fields of a subclass are its settings.

    A position is an index into the values of a call: its operands, then its results.

    Constraints:
    - call_c1: `scaled.kernel` names an operation, `scaled.config` is a dictionary, `scaled.operands` and
      `scaled.results` name each operand and result of the function's type once, sizes last
    - call_c2: the settings are those of the operation, each of its own kind
    - call_c3: the operands and results are those of the operation, in its order: sizes are no tensors, all others are
    - call_c4: `scaled.device`, where there is one, is cpu, cuda or custom, and custom runs what users' own quantizers
      make and read, all of it and nothing else
    - call_c5: the parts of a copy have the shapes and element types that its scheme stores
    """

    OPERATION: ClassVar[str] = ""

    operands: tuple[Slot, ...] = field(metadata=OWN)
    results: tuple[Slot, ...] = field(metadata=OWN)
    device: Device | None = field(default=None, metadata=OWN)
    """What runs it; None until kernels are selected."""
    has_destinations: bool = field(default=False, metadata=OWN)
    """Calls write their results into memory that they are given."""

    def __init_subclass__(cls) -> None:
        if cls.OPERATION:
            OPERATIONS[cls.OPERATION] = cls

    @classmethod
    def from_attributes(cls, attributes: ir.OpAttributeMap) -> Self:
        """The call that the attributes of a declaration describe, checked; raises `ConstraintError`."""
        settings = read_settings(cls, cls.OPERATION, _expect(attributes, CONFIG, ir.DictAttr, "a dictionary"))
        type_ = _expect(attributes, "function_type", ir.TypeAttr, "a type").value
        if not isinstance(type_, ir.FunctionType):
            raise ConstraintError("call_c1", f"function_type must be the type of a function, got {type_}")
        call = cls(
            operands=_slots(attributes, OPERANDS, type_.inputs),
            results=_slots(attributes, RESULTS, type_.results),
            device=_device(attributes),
            has_destinations=DESTINATIONS in attributes,
            **settings,
        )
        call.check()
        return call

    def to_attributes(self) -> dict[str, ir.Attribute]:
        """The attributes of a declaration of this call, in the current context."""
        attributes: dict[str, ir.Attribute] = {
            KERNEL: ir.StringAttr.get(self.OPERATION),
            CONFIG: write_settings(self),
            OPERANDS: ir.ArrayAttr.get([ir.StringAttr.get(slot.name) for slot in self.operands]),
            RESULTS: ir.ArrayAttr.get([ir.StringAttr.get(slot.name) for slot in self.results]),
        }
        if self.device is not None:
            attributes[DEVICE] = ir.StringAttr.get(self.device)
        if self.has_destinations:
            attributes[DESTINATIONS] = ir.UnitAttr.get()
        return attributes

    @property
    def function_type(self) -> ir.FunctionType:
        """The type of the function that stands for this call."""
        return ir.FunctionType.get([slot.type for slot in self.operands], [slot.type for slot in self.results])

    @property
    def is_custom(self) -> bool:
        """Whether a user's own quantizer runs it."""
        return False

    @property
    def read_copies(self) -> tuple[CopySlots, ...]:
        """The copies of quantized tensors among the operands."""
        return ()

    @property
    def made_copies(self) -> tuple[CopySlots, ...]:
        """The copies of quantized tensors among the results."""
        return ()

    @property
    def written(self) -> int | None:
        """The position of an operand that the call writes, which then is its result; None where results are new."""
        return None

    @cached_property
    def part_positions(self) -> frozenset[int]:
        """Positions of values of which a kernel reads only the addresses."""
        return self._part_positions()

    def _part_positions(self) -> frozenset[int]:
        """Those of the parts of quantized tensors, whose sizes are known from others."""
        return frozenset(place for copy in (*self.read_copies, *self.made_copies) for place in copy.places.values())

    @cached_property
    def sizes(self) -> slice:
        """Positions of the sizes that are known only at run time."""
        count = len(self.operands)
        return slice(count - [slot.name for slot in self.operands].count(SIZE), count)

    def operand(self, name: str) -> int | None:
        """The position of an operand; None where the call has none of that name."""
        return self._operand_positions.get(name)

    def result(self, name: str) -> int | None:
        """The position of a result; None where the call has none of that name."""
        return self._result_positions.get(name)

    def result_order(self, _number: int) -> tuple[int, ...]:
        """The dims of a result from the outermost in memory to the innermost; empty where they are in order."""
        return ()

    def operand_names(self) -> Names:
        """The operands that the operation has with these settings, beside sizes."""
        raise NotImplementedError(f"{type(self).__name__} has no names for its operands")

    def result_names(self) -> Names:
        """The results that the operation has with these settings."""
        return Names(("result",))

    def check(self) -> None:
        """Raise `ConstraintError` unless the constraints hold."""
        self.check_settings()
        fits = self.device is None or self.is_custom == (self.device == "custom")
        own = f"runs on the device custom, got {self.device}" if self.is_custom else "does not run on the device custom"
        require(fits, "call_c4", f"{self.OPERATION} with these settings {own}")
        operands, results = self.operand_names(), self.result_names()
        self._check_names("operand", [slot.name for slot in self.operands[: self.sizes.start]], operands)
        self._check_names("result", [slot.name for slot in self.results], results)
        opaque = (*operands.opaque, *results.opaque)
        for index, slot in enumerate((*self.operands, *self.results)):
            self._check_kind(slot, opaque, is_size=self.sizes.start <= index < self.sizes.stop)
        for copy in (*self.read_copies, *self.made_copies):
            for part, place in copy.places.items():
                slot = (*self.operands, *self.results)[place]
                copy.check_part(part, slot.name, slot.type)

    def check_settings(self) -> None:
        """Raise `ConstraintError` where settings do not go together."""

    @cached_property
    def _operand_positions(self) -> dict[str, int]:
        return {slot.name: index for index, slot in enumerate(self.operands)}

    @cached_property
    def _result_positions(self) -> dict[str, int]:
        return {slot.name: index for index, slot in enumerate(self.results, len(self.operands))}

    def _read_parts(self, prefix: str) -> dict[Part, int]:
        """Positions of the parts of a copy among the operands."""
        return {part: place for part in PARTS if (place := self.operand(f"{prefix}.{part}")) is not None}

    def _made_parts(self, prefix: str) -> dict[Part, int]:
        """Positions of the parts of a copy among the results."""
        return {part: place for part in PARTS if (place := self.result(f"{prefix}.{part}")) is not None}

    def _required(self, name: str) -> int:
        """The position of an operand that every call of the operation has."""
        return self._operand_positions[name]

    def _tensor(self, position: int) -> TensorInfo:
        """What the type of a tensor at a position says."""
        slot = (*self.operands, *self.results)[position]
        info = tensor_info(slot.type)
        if info is None:
            raise ConstraintError(
                "call_c3", f"{slot.name} of {self.OPERATION} must be a ranked tensor, got {slot.type}"
            )
        return info

    def _check_names(self, kind: str, found: list[str], wanted: Names) -> None:
        allowed = [name for name in (*wanted.required, *wanted.optional) if name in found]
        fits = allowed == found and all(name in found for name in wanted.required)
        optional = f" and may have ({', '.join(wanted.optional)})" if wanted.optional else ""
        message = f"{self.OPERATION} has the {kind}s ({', '.join(wanted.required)}){optional}, got ({', '.join(found)})"
        require(fits, "call_c3", message)

    def _check_kind(self, slot: Slot, opaque: tuple[str, ...], *, is_size: bool) -> None:
        if slot.name in opaque:
            return
        fits = is_size == (tensor_info(slot.type) is None)
        wanted = "a size" if is_size else "a ranked tensor"
        require(fits, "call_c3", f"{slot.name} of {self.OPERATION} must be {wanted}, got {slot.type}")


def matrix_shape(shape: Shape, name: str) -> tuple[int | None, int | None]:
    """A shape with its dims before the last as one; raises `ConstraintError` where it has no dims."""
    require(len(shape) > 0, "call_c2", f"{name} must have at least one dim, got none")
    rows: int | None = 1
    for size in shape[:-1]:
        rows = None if rows is None or size is None else rows * size
    return rows, shape[-1]


def _expect(attributes: ir.OpAttributeMap, name: str, kind: type[_Kind], words: str) -> _Kind:
    if name not in attributes:
        raise ConstraintError("call_c1", f"{name} must be {words}, got none")
    found = attributes[name]
    if not isinstance(found, kind):
        raise ConstraintError("call_c1", f"{name} must be {words}, got {found}")
    return found


def operation_of(attributes: ir.OpAttributeMap) -> type[KernelCall]:
    """The class of the operation that a declaration names; raises `ConstraintError`."""
    name = _expect(attributes, KERNEL, ir.StringAttr, "a string").value
    require(name in OPERATIONS, "call_c1", f"{KERNEL} must be one of {', '.join(OPERATIONS)}, got {name}")
    return OPERATIONS[name]


def _device(attributes: ir.OpAttributeMap) -> Device | None:
    if DEVICE not in attributes:
        return None
    name = _expect(attributes, DEVICE, ir.StringAttr, "a string").value
    for device in DEVICES:
        if device == name:
            return device
    raise ConstraintError("call_c4", f"{DEVICE} must be one of {', '.join(DEVICES)}, got {name}")


def _slots(attributes: ir.OpAttributeMap, name: str, types: Sequence[ir.Type]) -> tuple[Slot, ...]:
    array = _expect(attributes, name, ir.ArrayAttr, "an array of names")
    names = [one.value for one in array if isinstance(one, ir.StringAttr)]
    message = f"{name} must name each of the {len(types)} that the function's type has, got {array}"
    require(len(names) == len(array) == len(types), "call_c1", message)
    return tuple(Slot(*pair) for pair in zip(names, types, strict=True))
