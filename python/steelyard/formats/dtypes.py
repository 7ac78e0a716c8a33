"""The element types of tensors in the IR, and their sizes in bytes."""

FLOAT_DTYPES = ("f32", "bf16", "f16")
"""What recipes quantize."""

ITEM_SIZES = {
    "complex<f64>": 16,
    "complex<f32>": 8,
    "f64": 8,
    "si64": 8,
    "i64": 8,
    "ui64": 8,
    "f32": 4,
    "si32": 4,
    "i32": 4,
    "ui32": 4,
    "bf16": 2,
    "f16": 2,
    "si16": 2,
    "ui16": 2,
    "si8": 1,
    "ui8": 1,
    "i8": 1,
    "i1": 1,
    "f8E4M3FN": 1,
    "f8E5M2": 1,
}
