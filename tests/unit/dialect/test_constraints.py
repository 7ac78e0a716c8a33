"""Every constraint that an op, the type or the attribute documents is tested by an `expected-error`."""

import inspect
import re
from pathlib import Path

from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.base import Scaled
from steelyard.dialect.types import TensorType
from steelyard.formats.schemes import Scheme

DIALECT_TESTS = Path(__file__).parents[2] / "dialect"
SOURCES = [Path(inspect.getfile(Scheme)), *Path(inspect.getfile(Scaled)).parent.glob("*.py")]


def documented() -> set[str]:
    owners = [*Scaled.operations, TensorType, SchemeAttr, Scheme]
    return {name for owner in owners for name in re.findall(r"^- (\w+_c\d+):", inspect.getdoc(owner), re.MULTILINE)}


def in_tests() -> set[str]:
    texts = [path.read_text() for path in DIALECT_TESTS.glob("verify-*.mlir")]
    return {name for text in texts for name in re.findall(r"\{\{.*\[(\w+_c[1-9]\d*)\]", text)}


def test_there_are_constraints():
    assert len(documented()) > 70


def test_every_documented_constraint_is_tested():
    assert documented() - in_tests() == set()


def test_every_tested_constraint_is_documented():
    assert in_tests() - documented() == set()


def test_every_constraint_in_the_code_is_documented():
    spelled = {name for path in SOURCES for name in re.findall(r'"(\w+_c[1-9]\d*)"', path.read_text())}
    assert spelled - documented() == set()
