"""What measuring ops count: the numbers that their results hold, in order, all as f64.

`measure_quantize` counts `COPY_FIELDS`, then how many elements have each code, then how many scales are in each of
`SCALE_BINS`. `measure_product` counts `PRODUCT_FIELDS`, `measure_influence` `INFLUENCE_FIELDS`.
"""

from steelyard.formats.schemes import Scheme

COPY_FIELDS = (
    "elements",
    "square_sum",
    "error_square_sum",
    "saturated",
    "flushed",
    "amax",
    "nan_count",
    "inf_count",
    "scale_count",
    "scale_log2_sum",
)
"""The sums are over the elements whose value is finite before and after. The last two fields are of scales that are
finite and not 0."""
PRODUCT_FIELDS = (
    "elements",
    "square_sum",
    "error_square_sum",
    "max_error",
    "result_square_sum",
    "dot",
    "underflows",
    "not_finite",
)
"""`square_sum` is that of the product in high precision, `result_square_sum` that of the result, `dot` of both."""
INFLUENCE_FIELDS = ("rows", "square_sum")
"""The sum over rows of the square of what the row's error changes, by the gradient of the row."""
MAXIMA = ("amax", "max_error")
"""Fields of which several calls have the largest, and not the sum."""

SMALLEST_EXPONENT, LARGEST_EXPONENT = -149, 127
SCALE_BINS = LARGEST_EXPONENT - SMALLEST_EXPONENT + 3
"""The first is for 0, the last for what is not finite; those between are for [2^e, 2^(e + 1)), from e = -149 on."""

SLACK = 2.0**-20
"""By how much of the largest value that a scale can express a value may exceed it, because the scale is rounded."""

_LARGEST_CODES = {"f8E4M3FN": 0x7E, "f8E5M2": 0x7B, "f4E2M1FN": 0x77}


def code_count(scheme: Scheme) -> int:
    """How many codes an element has."""
    return 16 if scheme.element == "f4E2M1FN" else 256


def finite_codes(element: str) -> list[int]:
    """The codes that are finite values."""
    if element == "f4E2M1FN":
        return list(range(16))
    largest = _LARGEST_CODES[element]
    return [code for code in range(256) if code & 0x7F <= largest]


def largest_code(scheme: Scheme) -> int:
    """The byte of the largest code; of FP4, of two of them."""
    return _LARGEST_CODES[scheme.element]


def copy_length(scheme: Scheme) -> int:
    """How many numbers `measure_quantize` has for a copy."""
    return len(COPY_FIELDS) + code_count(scheme) + SCALE_BINS
