"""What the lowered IR of a net says of its tapes."""

import re


def calls_of_steps(lowered: str) -> set[tuple[str, bool]]:
    """The kernels that a program calls at each step, and whether on a tape; private functions make weights, once."""
    public = re.sub(r"(?s)\n( *)func\.func private @\w+\([^\n]*\{\n.*?\n\1\}", "", lowered)
    return {(found[1], "scaled.tape" in found[2]) for found in re.finditer(r"call @(\w+?)_\d+(\(.*)", public)}
