"""Arithmetic on sizes that are known only at run time agrees with that on integers."""

from hypothesis import given
from hypothesis import strategies as st

from steelyard.codegen.sizes import (
    Extent,
    IsZero,
    Product,
    Quotient,
    Size,
    Sum,
    ceil_div,
    is_multiple,
    is_zero,
    product_of,
)
from steelyard.formats.parts import part_shapes
from steelyard.formats.schemes import Scheme

ROWS, COLUMNS = Extent(0, 0), Extent(0, 1)
FACTORS = st.integers(1, 200)


def value_of(size: Size, rows: int, columns: int) -> int:
    """The value of an expression over two sizes."""
    if isinstance(size, int):
        return size
    if isinstance(size, Extent):
        return (rows, columns)[size.dim or 0]
    if isinstance(size, Sum):
        return value_of(size.size, rows, columns) + size.constant
    if isinstance(size, Product):
        return value_of(size.left, rows, columns) * value_of(size.right, rows, columns)
    if isinstance(size, IsZero):
        return int(value_of(size.size, rows, columns) == 0)
    assert isinstance(size, Quotient)
    return value_of(size.dividend, rows, columns) // value_of(size.divisor, rows, columns)


@given(st.integers(0, 500), st.integers(0, 500), FACTORS, FACTORS)
def test_expressions_have_the_values_of_integers(rows, columns, first, second):
    def compute(m, n):
        tiles = ceil_div(m * first, second) * ceil_div(n, first)
        return [tiles, -(-m // second) * second, product_of((first, m, n)), n * second // first, is_zero(m * n * first)]

    found = [value_of(size, rows, columns) for size in compute(ROWS, COLUMNS)]
    assert found == compute(rows, columns)


@given(st.integers(1, 300), FACTORS, st.sampled_from([4, 8, 16]))
def test_what_is_known_to_be_a_multiple_is_one(rows, factor, divisor):
    for size in (ROWS * factor, ceil_div(ROWS, factor) * divisor, ROWS * factor * COLUMNS):
        if is_multiple(size, divisor):
            assert value_of(size, rows, 7) % divisor == 0
    assert is_multiple(ceil_div(ROWS, factor) * divisor, divisor)
    assert not is_multiple(ROWS, divisor)


@given(st.integers(0, 200), st.integers(1, 200))
def test_parts_of_copies_follow_from_such_sizes_too(rows, columns):
    schemes = [
        Scheme("f8E4M3FN", "tensor", "f32"),
        Scheme("f8E4M3FN", "128x128", "f32"),
        Scheme("f8E4M3FN", "32x1", "f8E8M0FNU"),
        Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="tensor", rht=True),
        Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="row"),
    ]
    for scheme in schemes:
        expected = part_shapes(scheme, (rows, columns), True)
        found = part_shapes(scheme, (ROWS, COLUMNS), True)
        assert {name: tuple(value_of(s, rows, columns) for s in shape) for name, (shape, _) in found.items()} == {
            name: shape for name, (shape, _) in expected.items()
        }
