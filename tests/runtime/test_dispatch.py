import importlib
import subprocess
import sys
import threading

import pytest
import torch
from kernel_cases import assert_same_copy, nvfp4, operands, scheme_pairs

from steelyard.errors import TargetError
from steelyard.runtime import cpu
from steelyard.schemes import Scheme

E4M3 = "f8E4M3FN"
MX = Scheme(E4M3, "1x32", "f8E8M0FNU"), Scheme(E4M3, "32x1", "f8E8M0FNU")


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


def test_four_python_threads_at_once():
    torch.set_num_threads(2)
    x = torch.randn(600, 512)
    pairs = [MX, (nvfp4(), nvfp4(rht=True)), scheme_pairs()[0], (nvfp4("16x16"),) * 2]
    expected = [cpu.quantize(x, *pair, **operands(*pair)) for pair in pairs]
    found = [[] for _ in pairs]

    def work(index):
        for _ in range(5):
            found[index].append(cpu.quantize(x, *pairs[index], **operands(*pairs[index])))

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for copies, expected_copies in zip(found, expected, strict=True):
        assert len(copies) == 5
        for pair in copies:
            for copy, expected_copy in zip(pair, expected_copies, strict=True):
                assert_same_copy(copy, expected_copy)


_FORK = """
import os, signal, sys, torch
from steelyard.runtime import cpu
from steelyard.schemes import Scheme

torch.set_num_threads(2)
x = torch.randn(700, 512)
scheme = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
expected = cpu.quantize(x, scheme, None)[0].codes
child = os.fork()
if child == 0:
    signal.alarm(20)
    same = all(torch.equal(cpu.quantize(x, scheme, None)[0].codes, expected) for _ in range(3))
    os._exit(0 if same else 3)
_, status = os.waitpid(child, 0)
same = torch.equal(cpu.quantize(x, scheme, None)[0].codes, expected)
sys.exit(os.waitstatus_to_exitcode(status) if same else 4)
"""


def test_a_forked_child_has_its_own_pool():
    finished = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
