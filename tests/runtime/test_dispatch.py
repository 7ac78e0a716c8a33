import importlib

import pytest

from steelyard.errors import TargetError
from steelyard.runtime import cpu


def test_the_widest_instruction_set_is_the_default(isa):
    names = cpu.instruction_sets()
    assert names[0] == "baseline"
    assert cpu.isa() == isa
    cpu.set_isa(None)
    assert cpu.isa() == names[-1]


def test_unknown_instruction_sets_are_refused():
    used = cpu.isa()
    with pytest.raises(TargetError, match="baseline"):
        cpu.set_isa("sse9")
    assert cpu.isa() == used


def test_the_environment_chooses_the_instruction_set(monkeypatch):
    monkeypatch.setenv("STEELYARD_ISA", "baseline")
    importlib.reload(cpu)
    assert cpu.isa() == "baseline"
    monkeypatch.setenv("STEELYARD_ISA", "sse9")
    with pytest.raises(TargetError, match="STEELYARD_ISA"):
        importlib.reload(cpu)
    monkeypatch.delenv("STEELYARD_ISA")
    importlib.reload(cpu)
    assert cpu.isa() == cpu.instruction_sets()[-1]
