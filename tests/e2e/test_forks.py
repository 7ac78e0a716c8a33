"""Nets in forked processes: they compute what their parent does, or say why they cannot; nothing waits forever."""

import subprocess
import sys
import textwrap

import pytest

_SETUP = """
import os, signal, sys, threading, warnings
import torch, steelyard
from steelyard.errors import SteelyardError

warnings.simplefilter("ignore")
torch.set_num_threads(2)
torch.manual_seed(0)

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512))

def infer(net, x):
    with torch.no_grad():
        return net(x)

def gradient(net, x):
    net.zero_grad()
    net(x).square().mean().backward()
    return net[0].weight.grad.clone()

def in_child(work):
    "What a forked child says; it is killed after a minute."
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    said = os.read(reading, 65536).decode()
    os.close(reading)
    return said if status == 0 else f"hung, or died: {os.waitstatus_to_exitcode(status)}"
"""


def run(script: str) -> str:
    program = _SETUP + textwrap.dedent(script)
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.slow
def test_children_of_a_process_with_busy_threads_compute_the_same():
    said = run("""
        net, other = steelyard.compile(make(), "mxfp8"), make()
        x, y = torch.randint(-9, 9, (512, 512)).float(), torch.randn(300, 512)
        expected = infer(net, x), gradient(net, x), infer(net, y), x @ x.T
        shown = net.ir("quantized"), str(net.explain())
        stop = threading.Event()

        def compute():
            while not stop.is_set():
                infer(net, x), x @ x.T

        threads = [threading.Thread(target=compute) for _ in range(3)]
        for thread in threads:
            thread.start()
        # Often: a fork may catch a thread anywhere, and in one place in 25 torch holds a lock.
        print({in_child(lambda: torch.equal(infer(net, x), expected[0])) for _ in range(40)})
        print(sys.getswitchinterval())
        print(in_child(lambda: torch.equal(gradient(net, x), expected[1])))
        print(in_child(lambda: torch.equal(infer(steelyard.compile(other, "mxfp8"), y), expected[2])))
        print(in_child(lambda: torch.equal(x @ x.T, expected[3])))
        print(in_child(lambda: (net.ir("quantized"), str(net.explain())) == shown))
        stop.set()
        for thread in threads:
            thread.join()
        print(all(map(torch.equal, (infer(net, x), gradient(net, x), infer(net, y), x @ x.T), expected)))
    """)
    assert said.splitlines() == ["{'True'}", "0.005", *["True"] * 5]


def test_a_child_of_a_process_that_compiles_runs_what_is_compiled_and_refuses_the_rest():
    said = run("""
        net, x = steelyard.compile(make(), "mxfp8"), torch.randn(64, 512)
        expected = infer(net, x)
        begun, go_on = threading.Event(), threading.Event()

        def slow(graph_module, inputs):
            begun.set()
            go_on.wait()
            return graph_module.forward

        thread = threading.Thread(target=lambda: torch.compile(lambda value: value + 1, backend=slow)(x))
        thread.start()
        begun.wait()
        print(in_child(lambda: torch.equal(infer(net, x), expected)))
        print(in_child(lambda: infer(steelyard.compile(make(), "mxfp8"), x)))
        go_on.set()
        thread.join()
        print(in_child(lambda: torch.equal(infer(steelyard.compile(make(), "mxfp8"), x), expected)))
    """)
    runs, refused, after = said.splitlines()
    assert (runs, after) == ("True", "True")
    assert refused.startswith("SteelyardError: this process was forked while another thread compiled")
    assert 'start processes by "spawn"' in refused


def test_locks_and_switches_of_other_threads_are_free_in_a_child():
    said = run("""
        from steelyard.driver.fast_path import without_fast_path
        from steelyard.forks import make_lock

        lock, held, go_on = make_lock(), threading.Event(), threading.Event()

        def hold():
            with lock, without_fast_path():
                held.set()
                go_on.wait()

        def leave():
            switches = [torch.backends.mha.get_fastpath_enabled()]
            with without_fast_path():
                switches.append(torch.backends.mha.get_fastpath_enabled())
            return switches, lock.acquire(timeout=10)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        print(in_child(leave))
        with without_fast_path():
            print(in_child(torch.backends.mha.get_fastpath_enabled))
        print(torch.backends.mha.get_fastpath_enabled(), lock.locked())
        go_on.set()
        thread.join()
        print(torch.backends.mha.get_fastpath_enabled(), lock.locked())
    """)
    assert said.splitlines() == ["([True, False], True)", "False", "False True", "True False"]


@pytest.mark.slow
def test_workers_of_a_data_loader_run_nets():
    said = run("""
        class Encoded(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return infer(net, values[index])

        def encode_again(batch):
            return infer(net, torch.stack(batch).reshape(-1, 512)), torch.get_num_threads()

        net, values = steelyard.compile(make(), "mxfp8"), torch.randn(8, 64, 512)
        expected = [infer(net, torch.stack([infer(net, values[i]), infer(net, values[i + 1])]).reshape(-1, 512))
                    for i in range(0, 8, 2)]
        for workers in (0, 2):
            loader = torch.utils.data.DataLoader(
                Encoded(), batch_size=2, collate_fn=encode_again, num_workers=workers, timeout=60 if workers else 0,
                multiprocessing_context="fork" if workers else None)
            found, threads = zip(*loader)
            print(all(map(torch.equal, found, expected)), set(threads))
    """)
    assert said.splitlines() == ["True {2}", "True {1}"]
