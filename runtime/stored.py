"""Parameters that are quantized already, taken apart into what programs read."""

from collections.abc import Callable
from typing import Any

from steelyard.errors import StateError
from steelyard.ir.kernel_calls import StoredCall


def bind(call: StoredCall) -> Callable[[Any], tuple]:
    """The function of a call: the parts that a quantized tensor holds."""
    scheme = call.scheme

    def stored(source: Any) -> tuple:
        read = getattr(source, "weight_parts", None)
        parts = None if read is None else read(scheme, is_transposed=False)
        if parts is None:
            wanted = f"{scheme.element} in {scheme.block}, as when its graph was compiled"
            raise StateError(f"a parameter must be a quantized tensor of {wanted}, got {type(source).__name__}")
        return parts

    return stored
