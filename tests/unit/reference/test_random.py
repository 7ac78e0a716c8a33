import numpy as np
import pytest

from steelyard.reference.random import philox4x32, rounding_bytes

ONES = 0xFFFFFFFF


def scalar_philox(counter, key):
    """The published rounds, in Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(second >> 32) ^ c[1] ^ k[0], second & ONES, (first >> 32) ^ c[3] ^ k[1], first & ONES]
        k = [(k[0] + 0x9E3779B9) & ONES, (k[1] + 0xBB67AE85) & ONES]
    return c


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, words):
    assert tuple(int(word) for word in philox4x32(counter, key)) == words


@pytest.mark.parametrize("columnwise", [False, True])
def test_each_element_has_its_byte_of_the_stream(columnwise):
    seed, offset = 0x0123456789ABCDEF, 0x1FFFFFFFF
    found = rounding_bytes((5, 7), columnwise, (seed, offset))
    for row, column in ((0, 0), (0, 6), (2, 1), (2, 2), (4, 6)):
        index = row * 7 + column
        counter = (index // 16, int(columnwise), ONES, 1)
        word = scalar_philox(counter, (0x89ABCDEF, 0x01234567))[index % 16 // 4]
        assert found[row, column] == word >> (8 * (index % 4)) & 0xFF


def test_bytes_are_uniform_and_change_with_every_part_of_the_counter():
    base = rounding_bytes((256, 256), False, (1, 2))
    counts = np.bincount(base.ravel(), minlength=256)
    assert abs(counts - 256).max() < 6 * 16
    for other in (
        rounding_bytes((256, 256), True, (1, 2)),
        rounding_bytes((256, 256), False, (3, 2)),
        rounding_bytes((256, 256), False, (1, 3)),
        rounding_bytes((256, 256), False, (1 + (1 << 32), 2)),
    ):
        assert 0.99 < (other != base).mean() < 1
