"""Kernels on several threads: torch's threads, and their own if torch has none."""

import subprocess
import sys
import threading

import torch
from kernel_cases import assert_same_copy, nvfp4, operands, scheme_pairs

from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu

E4M3 = "f8E4M3FN"
MX = Scheme(E4M3, "1x32", "f8E8M0FNU"), Scheme(E4M3, "32x1", "f8E8M0FNU")


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


def test_instruction_sets_are_listed_while_kernels_run():
    torch.set_num_threads(2)
    copies = [cpu.quantize(torch.randn(200, 512), nvfp4(), None)[0] for _ in range(2)]
    expected, names = cpu.qgemm(*copies), cpu.instruction_sets()
    is_done = threading.Event()
    listed = []

    def list_them():
        while not is_done.is_set():
            listed.append(cpu.instruction_sets())

    lister = threading.Thread(target=list_them)
    lister.start()
    found = [cpu.qgemm(*copies) for _ in range(20)]
    is_done.set()
    lister.join()
    assert all(torch.equal(product, expected) for product in found)
    assert all(one == names for one in listed)


# The bytes are compared without torch: after a fork its own threads are gone, and it would wait for them.
_FORK = """
import os, signal, sys, torch
from steelyard.runtime import cpu
from steelyard.formats.schemes import Scheme

torch.set_num_threads(2)
x = torch.randn(700, 512)

def codes():
    return cpu.quantize(x, Scheme("f8E4M3FN", "1x32", "f8E8M0FNU"), None)[0].codes.numpy().tobytes()

expected = codes()
child = os.fork()
if child == 0:
    signal.alarm(20)
    same = all(codes() == expected for _ in range(3))
    os._exit(0 if same else 3)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status) if codes() == expected else 4)
"""


def test_a_forked_child_has_its_own_pool():
    finished = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr


_SHARED = """
import os, torch
from steelyard.runtime import cpu
from steelyard.formats.schemes import Scheme

torch.set_num_threads(2)
x = torch.randn(700, 512)
before = len(os.listdir("/proc/self/task"))
cpu.quantize(x, Scheme("f8E4M3FN", "1x32", "f8E8M0FNU"), None)
kernels = len(os.listdir("/proc/self/task"))
torch.mm(x, x.T)
torch.randn(2000, 500).exp_()
print(kernels - before, len(os.listdir("/proc/self/task")) - before)
"""


def test_kernels_and_torch_compute_on_the_same_threads():
    """Each needs one more thread than the caller's, whichever runs first."""
    finished = subprocess.run([sys.executable, "-c", _SHARED], capture_output=True, text=True, timeout=60)
    assert (finished.stdout.split(), finished.returncode) == (["1", "1"], 0), finished.stderr


_CONCURRENT = """
import threading, torch
from steelyard.runtime import cpu
from steelyard.formats.schemes import Scheme

torch.set_num_threads(2)
x = torch.randn(700, 512)
scheme = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
for _ in range(20):
    workers = [threading.Thread(target=cpu.quantize, args=(x, scheme, None)) for _ in range(3)]
    for worker in workers:
        worker.start()
    torch.mm(x, x.T)
    for worker in workers:
        worker.join()
print("done")
"""


def test_threads_that_come_and_go():
    """Each Python thread has its own team of threads while it lives."""
    finished = subprocess.run([sys.executable, "-c", _CONCURRENT], capture_output=True, text=True, timeout=120)
    assert (finished.stdout.strip(), finished.returncode) == ("done", 0), finished.stderr
