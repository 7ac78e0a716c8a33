"""The line that says what is being compiled: when it is there, what it says, and that it leaves nothing behind."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from terminal import Screen, terminal

import steelyard
from steelyard.driver import attributing, progress, stages
from steelyard.errors import InternalError


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Lines come without a delay, and often."""
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    monkeypatch.setattr(progress, "_INTERVAL", 0.01)


def wait_for_lines() -> None:
    """Wait for a line about the present work, if there is to be one."""
    line = progress._line
    if line is None or not line.works:
        time.sleep(0.2)
        return
    with line._lock:
        line._erase()
    deadline = time.monotonic() + 60
    while not line._is_drawn and time.monotonic() < deadline:
        time.sleep(0.01)


def lines_of(screen: Screen) -> set[str]:
    """What the lines said, without the seconds."""
    return {row.partition(" ... ")[0] for row in screen.seen if row.startswith("steelyard: ")}


def small_net() -> torch.nn.Module:
    return steelyard.compile(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)), "mxfp8")


def slow_stage(monkeypatch, then=lambda: None) -> None:
    def make_quantized(*arguments):
        original(*arguments)
        wait_for_lines()
        then()

    original = stages.make_quantized
    monkeypatch.setattr(stages, "make_quantized", make_quantized)


def test_a_call_says_what_it_compiles_and_leaves_the_terminal_as_it_was(monkeypatch):
    slow_stage(monkeypatch)
    net = small_net()
    with terminal() as shown:
        shown.stream.write("before\nloading: ")
        with torch.no_grad():
            net(torch.ones(16, 32))
        shown.stream.write("done\n")
    screen = Screen().feed(shown.written())
    assert "steelyard: compiling the model, quantized" in lines_of(screen)
    assert any(line.startswith("steelyard: tracing ") for line in lines_of(screen))
    assert screen.rows == ["before", "loading: done"]


def test_a_part_of_a_net_is_named(monkeypatch):
    slow_stage(monkeypatch)
    net = small_net()
    with terminal() as shown:
        net[1](torch.ones(16, 32)).sum().backward()
    screen = Screen().feed(shown.written())
    assert "steelyard: compiling 1, quantized" in lines_of(screen)
    assert screen.rows == []


def test_weights_that_are_quantized_for_the_first_time_are_counted(monkeypatch):
    net = small_net()
    with torch.no_grad():
        net(torch.ones(16, 32))
        net.requantize()
        (program,) = {compilation.program for compilation in net._steelyard.backend.compilations}
        for weight in program.weight_arguments:
            monkeypatch.setattr(weight, "make", slowly(weight.make))
        with terminal() as shown:
            net(torch.ones(16, 32))
    screen = Screen().feed(shown.written())
    assert lines_of(screen) == {"steelyard: quantizing weights, 0 done", "steelyard: quantizing weights, 1 done"}
    assert screen.rows == []


def test_the_runs_of_an_attribution_have_a_bar(monkeypatch):
    measure = attributing._Runs._measure
    monkeypatch.setattr(attributing._Runs, "_measure", lambda *a: [wait_for_lines(), measure(*a)][1])
    net = small_net()
    with terminal() as shown:
        net.attribute([torch.randn(16, 32)], estimate=False)
    screen = Screen().feed(shown.written())
    bars = [line.partition(", run ") for line in sorted(lines_of(screen)) if "attributing" in line]
    # Two layers: all of them, each alone, and all but each.
    assert {(bar, rest.partition(",")[0]) for bar, _, rest in bars} >= {
        ("steelyard: attributing [----------] batch 1", "1 of 5"),
        ("steelyard: attributing [########--] batch 1", "5 of 5"),
    }
    times = [rest.partition(", ")[2] for _, _, rest in bars if not rest.startswith("1 of")]
    assert [text for text in times if not re.fullmatch(r"\d+ (s|min) left", text)] == []
    assert screen.rows == []


def slowly(function):
    def slow(*arguments):
        wait_for_lines()
        return function(*arguments)

    return slow


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_line_vanishes_when_a_call_fails(monkeypatch, error):
    def fail():
        raise error("in a stage")

    slow_stage(monkeypatch, fail)
    net = small_net()
    with terminal() as shown:
        with torch.no_grad(), pytest.raises((InternalError, KeyboardInterrupt), match="in a stage"):
            net(torch.ones(16, 32))
        wait_for_lines()
        shown.stream.write("after\n")
    screen = Screen().feed(shown.written())
    assert "steelyard: compiling the model, quantized" in lines_of(screen)
    assert screen.rows == ["after"]
    assert progress._line is None


def test_what_others_write_meanwhile_stays_whole():
    with terminal() as shown:
        stream = shown.stream
        with progress.doing(lambda: "compiling " + 40 * "x"):
            wait_for_lines()
            stream.write(warnings.formatwarning("short", UserWarning, "model.py", 7, line="x"))
            wait_for_lines()
            print("a bar: 10 %", end="", file=stream, flush=True)
            wait_for_lines()
            print("\ra bar: 20 %", file=stream)
            wait_for_lines()
        assert "write" not in vars(stream)
    text = shown.written()
    # At the bottom of a small screen, there is no line below the cursor before one is made.
    for height in (2, 3, 24):
        screen = Screen(height).feed(text)
        assert lines_of(screen) == {"steelyard: compiling " + 40 * "x"}
        assert screen.rows == ["model.py:7: UserWarning: short", "  x", "a bar: 20 %"]


def test_nothing_is_shown_before_the_delay_which_counts_from_the_first_work_of_a_call(monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 60.0)
    with terminal() as shown, progress.doing(lambda: "quick work"):
        time.sleep(0.2)
    assert shown.written() == ""
    monkeypatch.setattr(progress, "_DELAY", 1.0)
    with terminal() as shown, progress.call():
        with progress.doing(lambda: "first"):
            pass
        time.sleep(1.1)
        with progress.doing(lambda: "second"):
            time.sleep(0.5)
        time.sleep(0.2)
    screen = Screen().feed(shown.written())
    assert lines_of(screen) == {"steelyard: second"}
    assert screen.rows == []


def test_a_line_is_no_wider_than_the_terminal_and_holds_no_controls():
    with terminal() as shown, progress.doing(lambda: "layer \033[2J" + 200 * "x"):
        wait_for_lines()
    (line,) = lines_of(Screen().feed(shown.written()))
    assert line == ("steelyard: layer ?[2J" + 200 * "x")[:79]


def test_of_two_threads_one_is_shown():
    inside, shown_both = threading.Event(), threading.Event()

    def other():
        with progress.doing(lambda: "the other thread"):
            inside.set()
            shown_both.wait()

    with terminal() as shown:
        with progress.doing(lambda: "this thread"):
            thread = threading.Thread(target=other)
            thread.start()
            inside.wait()
            wait_for_lines()
        wait_for_lines()
        shown_both.set()
        thread.join()
    screen = Screen().feed(shown.written())
    assert lines_of(screen) == {"steelyard: this thread"}
    assert screen.rows == []


def test_a_forked_process_leaves_the_terminal_to_its_parent():
    with terminal() as shown:
        with progress.doing(lambda: "the parent"):
            wait_for_lines()
            child = os.fork()
            if child == 0:
                status = 1
                with contextlib.suppress(BaseException):
                    assert "write" not in vars(shown.stream)
                    with progress.doing(lambda: "the child"):
                        wait_for_lines()
                    status = 0
                os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            wait_for_lines()
        shown.stream.write("after\n")
    screen = Screen().feed(shown.written())
    assert lines_of(screen) == {"steelyard: the parent"}
    assert screen.rows == ["after"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("STEELYARD_PROGRESS", "0"), ("TERM", "dumb"), ("CI", "true"), ("PYTEST_CURRENT_TEST", "a test")],
)
def test_nothing_is_shown_where_it_was_turned_off(name, value):
    with terminal(**{name: value}) as shown, progress.doing(lambda: "work"):
        wait_for_lines()
    assert shown.written() == ""


def test_a_warm_call_does_not_come_near_it(monkeypatch):
    net, x = small_net(), torch.ones(16, 32)
    for _ in range(3):
        net(x).sum().backward()
    for name in ("call", "doing", "step"):
        monkeypatch.setattr(progress, name, None)
    net(x).sum().backward()


_PROGRAM = """
import sys, time, torch, steelyard, warnings
from steelyard.driver import progress, stages
progress._DELAY = progress._INTERVAL = 0.01

def make_fused(*arguments, original=stages.make_fused):
    time.sleep(0.2)
    warnings.warn("meanwhile")
    time.sleep(0.2)
    original(*arguments)

stages.make_fused = make_fused
warnings.formatwarning = lambda message, *_, **__: f"{message}\\nof two lines\\n"
print("before", file=sys.stderr)
with torch.no_grad():
    steelyard.compile(torch.nn.Linear(32, 32), "mxfp8")(torch.ones(16, 32))
print("after", file=sys.stderr)
"""


@pytest.mark.slow
def test_a_program_in_a_terminal_shows_it_and_one_that_writes_to_a_pipe_does_not():
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTEST_CURRENT_TEST", "CI")}
    command, variables["TERM"] = [sys.executable, "-c", _PROGRAM], "xterm"
    with terminal() as shown:
        subprocess.run(command, stdout=shown.stream, stderr=shown.stream, env=variables, check=True)
    screen = Screen().feed(shown.written())
    assert any(line.startswith("steelyard: tracing ") for line in lines_of(screen))
    assert screen.rows == ["before", "meanwhile", "of two lines", "after"]
    piped = subprocess.run(command, capture_output=True, text=True, env=variables, check=True)
    assert piped.stderr == "before\nmeanwhile\nof two lines\nafter\n"
