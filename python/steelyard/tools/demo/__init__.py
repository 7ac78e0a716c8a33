"""`steelyard demo`: the linear layers of a model's block, before and after a recipe."""

from steelyard.tools.demo.show import run

__all__ = ["run"]
