"""From the names of one layer to those of another with the same code: of its modules, parameters and states."""

from collections.abc import Sequence

from steelyard.ir.attributes import RNG


class Renaming:
    """The names of other parameters, in the same places, and what follows from them for layers and states.

    A layer is renamed like the innermost module around it that has a renamed parameter. A parameter that is shared has
    the same name on both sides: it says nothing about the modules around it where others say more.
    """

    def __init__(self, old: Sequence[str | None], new: Sequence[str | None]):
        pairs = [(a, b) for a, b in zip(old, new, strict=True) if a is not None and b is not None]
        self._parameters = dict(pairs)
        self._modules: dict[str, str] = {}
        for a, b in sorted(pairs, key=lambda pair: (pair[0] != pair[1], _common_end(*pair))):
            left, right = a.split(".")[:-1], b.split(".")[:-1]
            self._modules[".".join(left)] = ".".join(right)
            while left and right and left[-1] == right[-1]:
                left, right = left[:-1], right[:-1]
                self._modules[".".join(left)] = ".".join(right)
        self.is_one_to_one = len(set(pairs)) == len(self._parameters) == len(set(self._parameters.values()))
        """Whether parameters that differ still do, and those that are one still are."""

    def parameter(self, name: str) -> str:
        """The new name of a parameter."""
        return self._parameters.get(name, name)

    def layer(self, name: str) -> str:
        """The new name of a layer, by the innermost renamed module around it."""
        parts = name.split(".") if name else []
        for count in range(len(parts), -1, -1):
            new = self._modules.get(".".join(parts[:count]))
            if new is not None:
                return ".".join([*([new] if new else []), *parts[count:]])
        return name

    def state(self, name: str) -> str:
        """The new name of a state: `<layer>.<role>.scale` follows its layer."""
        if name == RNG:
            return name
        parts = name.split(".")
        layer = self.layer(".".join(parts[:-2]))
        return ".".join([*([layer] if layer else []), *parts[-2:]])


def _common_end(left: str, right: str) -> int:
    """How many of the last words of two dotted names are the same."""
    pairs = zip(reversed(left.split(".")), reversed(right.split(".")), strict=False)
    count = 0
    for a, b in pairs:
        if a != b:
            break
        count += 1
    return count
