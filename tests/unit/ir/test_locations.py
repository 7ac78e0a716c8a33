"""What the location of an op says."""

import pytest
from torch_mlir import ir

from steelyard.ir.locations import source_of


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ('loc("layers.0"("64 flops"("model.py":12:8)))', "model.py:12"),
        ('loc("layers.0"(callsite("block.py":3:0 at callsite("model.py":7:0 at "main.py":1:0))))', "block.py:3"),
        ('loc("layers.0")', ""),
        ("loc(unknown)", ""),
    ],
)
def test_the_source_line_is_the_innermost_of_a_call(text, source):
    with ir.Context():
        module = ir.Module.parse(f"module {{}} {text}")
        assert source_of(module.operation.location) == source
