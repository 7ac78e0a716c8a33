"""Sizes as commands print them."""

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size_text(count: float) -> str:
    """A number of bytes in the unit that suits it."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} bytes" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"
