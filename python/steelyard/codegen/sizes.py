"""Sizes that are known when a program is compiled, and expressions over those that are known only when it runs.

Integers and expressions mix in arithmetic, so that code which computes shapes works on both.
"""

from dataclasses import dataclass


class RuntimeSize:
    """A size that is known only at run time."""

    def __mul__(self, other: "Size") -> "Size":
        if other == 0:
            return 0
        return self if other == 1 else _product(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: "Size") -> "Size":
        return self if other == 1 else Quotient(self, other)

    def __rfloordiv__(self, other: int) -> "Size":
        return 0 if other == 0 else Quotient(other, self)

    def __neg__(self) -> "_Negative":
        return _Negative(self)


Size = int | RuntimeSize


@dataclass(frozen=True)
class Extent(RuntimeSize):
    """The size of a dim of an operand, or an operand that is a size itself (dim None)."""

    operand: int
    dim: int | None = None


@dataclass(frozen=True)
class Sum(RuntimeSize):
    """A size and a constant."""

    size: RuntimeSize
    constant: int


@dataclass(frozen=True)
class Product(RuntimeSize):
    """A size times a constant or another size."""

    left: RuntimeSize
    right: Size


@dataclass(frozen=True)
class Quotient(RuntimeSize):
    """A size divided by another, rounded down; 0 where the divisor is 0."""

    dividend: Size
    divisor: Size


@dataclass(frozen=True)
class IsZero(RuntimeSize):
    """1 where a size is 0, otherwise 0."""

    size: RuntimeSize


@dataclass(frozen=True)
class _Negative:
    """A negated size, as in `-(-size // block)`, which rounds up."""

    size: Size

    def __floordiv__(self, divisor: int) -> "_Negative":
        return _Negative(ceil_div(self.size, divisor))

    def __neg__(self) -> Size:
        return self.size


def ceil_div(size: Size, divisor: int) -> Size:
    """A quotient rounded up."""
    if isinstance(size, int):
        return -(-size // divisor)
    if divisor == 1:
        return size
    if isinstance(size, Product) and isinstance(size.right, int) and size.right % divisor == 0:
        return size.left * (size.right // divisor)
    return Quotient(Sum(size, divisor - 1), divisor)


def plus(size: Size, constant: int) -> Size:
    """A size and a constant."""
    return size + constant if isinstance(size, int) else Sum(size, constant)


def product_of(sizes: tuple[Size, ...]) -> Size:
    """The product of sizes; that of none is 1."""
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


def is_multiple(size: Size, divisor: int) -> bool:
    """Whether a size is known to be a multiple."""
    if isinstance(size, int):
        return size % divisor == 0
    if isinstance(size, Product):
        return is_multiple(size.left, divisor) or is_multiple(size.right, divisor)
    return False


def is_zero(size: Size) -> Size:
    """1 where a size is 0, otherwise 0."""
    return int(size == 0) if isinstance(size, int) else IsZero(size)


def _product(left: RuntimeSize, right: Size) -> Product:
    """A product with its constants joined on the right."""
    if isinstance(left, Product) and isinstance(left.right, int):
        return _product(left.left, left.right * right)
    if isinstance(right, Product) and isinstance(right.right, int):
        return Product(_product(left, right.left), right.right)
    return Product(left, right)
