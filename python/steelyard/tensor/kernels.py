"""Where the tensor layer's arithmetic comes from: native kernels, and the reference for what they do not have.

Chosen once, here. Both leave the same bytes.
"""

from steelyard import reference
from steelyard.runtime import cpu


def _pick(name: str):
    return getattr(cpu, name, None) or getattr(reference, name)


amax = _pick("amax")
dequantize = _pick("dequantize")
qgemm = _pick("qgemm")
quantize = _pick("quantize")
swizzle = _pick("swizzle")
transpose = _pick("transpose")
