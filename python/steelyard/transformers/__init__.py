"""A quantizer of transformers: `from_pretrained` returns nets, and `save_pretrained` writes their codes.

Importing this package registers the method `steelyard` and, unless transformers knows it already, `modelopt`.
"""

from steelyard.transformers.config import SteelyardConfig, read_config
from steelyard.transformers.quantizer import SteelyardQuantizer

__all__ = ["SteelyardConfig", "SteelyardQuantizer", "read_config"]
