"""Copies of quantized tensors among the values of a call."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch_mlir import ir

from steelyard.dialect.base import require
from steelyard.dialect.types import Shape, format_shape, shapes_agree, tensor_info
from steelyard.formats.parts import Part, part_names, part_shapes
from steelyard.formats.schemes import Scheme


@dataclass(frozen=True)
class CopySlots:
    """One copy of a matrix, and the positions of its parts among the values of a call."""

    scheme: Scheme
    columnwise: bool
    shape: tuple[int | None, int | None]
    """Rows and columns of the matrix."""
    places: Mapping[Part, int]
    """Position of each part; an operation on some parts alone has no others."""

    @property
    def is_packed(self) -> bool:
        """Whether all parts are one tensor."""
        return self.scheme.layout == "packed"

    @property
    def codes(self) -> int:
        """The position of the codes, or of the one tensor that a packed copy is."""
        return self.places["packed" if self.is_packed else "codes"]

    @property
    def scales(self) -> int:
        """The position of the scales, of a copy that is not packed."""
        return self.places["scales"]

    @property
    def amax(self) -> int | None:
        """The position of the amax; None where the scheme has none."""
        return self.places.get("amax")

    def part_shapes(self) -> dict[Part, tuple[Shape, str]]:
        """Shape and element type of each part that the scheme stores."""
        return part_shapes(self.scheme, self.shape, self.columnwise)

    def check_part(self, part: Part, name: str, type_: ir.Type) -> None:
        """Require that a part has the type that the scheme says."""
        known = not self.is_packed or None not in self.shape
        require(known, "call_c5", f"a packed copy must have a known shape, got {format_shape(self.shape)}")
        shape, dtype = self.part_shapes()[part]
        info = tensor_info(type_)
        # Bytes are unsigned in torch; builtin tensors have signless integers.
        fits = info is not None and info.dtype.removeprefix("u") == dtype and shapes_agree(info.shape, shape)
        wanted = f"a tensor {format_shape(shape)} of {dtype}"
        require(fits, "call_c5", f"{name} must be {wanted}, as its scheme stores it, got {type_}")


def named_parts(scheme: Scheme, prefix: str) -> tuple[str, ...]:
    """The names of the parts of a copy, as in `lhs.codes`."""
    return tuple(f"{prefix}.{part}" for part in part_names(scheme))
