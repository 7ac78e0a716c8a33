"""`steelyard-opt` as a process: bad input of every kind gets a diagnostic and exit code 1, bad usage exit code 2."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = "func.func @f() { return }\n"


def opt(*arguments: str, text: bytes | None = None, **keywords) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "steelyard.tools.opt", *arguments]
    return subprocess.run(command, input=text, capture_output=True, timeout=120, check=False, **keywords)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (b"func.func @f(", "1:13", "expected"),
        (b"\n\nfunc.func @f() { retur }", "3:18", "retur"),
        (b"func.func @f() {\n\0 return }", "2:1", "must not contain NUL bytes"),
        (b"func.func @f() {\n  \xff\xfe }", "2:3", "must be UTF-8, got byte 0xff"),
        (b"module {" * 20000, "1:2056", "brackets must not nest deeper than 256"),
        (b'"test.op"() {a = ' + b"[" * 100000, "1:", "brackets must not nest deeper than 256"),
        (b"func.func private @f(" + b"tuple<" * 50000, "1:", "brackets must not nest deeper than 256"),
        (b"func.func private @f(tensor<99999999999999999999999xf32>)", "1:29", "invalid dimension"),
        (b"func.func private @f(tensor<4xi99999999999>)", "1:31", "invalid integer width"),
        (b"func.func @f(%x: f32) -> f64 { return %x : f32 }", "1:32", "doesn't match function result type"),
        (b'%0 = "scaled.frobnicate"() : () -> i32', "1:6", "unregistered operation 'scaled.frobnicate'"),
        (b'%0 = "scaled.amax"() : () -> i32', "1:6", "requires attribute 'per_row' [amax_c0]"),
        (b"func.func @f() {\n  %0 = arith.constant " + b"9" * 100000 + b" : i64 return }", "2:23", "2048 digits"),
        (b'func.func @f() {\n  %0:2 = "test.op"() : () -> (i1, i1)\n  return %0#4294967295 }', "3:10", "65536 results"),
        (b"func.func @f(%x: tensor<2xi64>) {\n  %0 = scaled.advance_rng %x : tensor<=> -> i1 return }", "2:", "error"),
        (b'%0:4294967295 = "test.op"() : () -> i1', "1:1", "fewer than 65536 results"),
        (bytes(range(1, 128)) * 50, "1:1", "error"),
        (b"ML\xefRgarbage", "", "error"),
    ],
    # The environment of the process that is started has the name of the test, and bounds it.
    ids=lambda value: str(value)[:40],
)
def test_bad_text_gets_a_place_and_a_reason(text, place, message):
    run = opt(text=text)
    assert run.returncode == 1
    first = run.stderr.decode().splitlines()[0]
    assert message in first
    assert first.startswith(f"<stdin>:{place}" if place else "<stdin>")
    assert run.stdout == b""


def test_empty_input_is_an_empty_module():
    run = opt(text=b"")
    assert (run.returncode, run.stdout) == (0, b"module {\n}\n")


def test_files_that_cannot_be_read(tmp_path):
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "absent.mlir", "No such file or directory")):
        run = opt(str(path))
        assert run.returncode == 2
        assert reason in run.stderr.decode()


def test_files_that_cannot_be_written_change_nothing(tmp_path):
    source = tmp_path / "a.mlir"
    source.write_text(GOOD)
    for target in (tmp_path / "absent" / "out.mlir", tmp_path):
        run = opt(str(source), "-o", str(target))
        assert run.returncode == 2
        assert "cannot write" in run.stderr.decode()
    assert list(tmp_path.iterdir()) == [source]


def test_a_failing_run_leaves_the_output_file_as_it_was(tmp_path):
    out = tmp_path / "out.mlir"
    out.write_text("before")
    assert opt("-o", str(out), text=b"func.func @f(").returncode == 1
    assert out.read_text() == "before"
    assert opt("-o", str(out), text=GOOD.encode()).returncode == 0
    assert "func.func @f" in out.read_text()


def test_a_closed_pipe_is_no_traceback(tmp_path):
    source = tmp_path / "a.mlir"
    source.write_text(GOOD)
    tool = f"{sys.executable} -m steelyard.tools.opt {source}"
    # The reader exits before the tool writes, because the tool takes a while to start.
    run = subprocess.run(["bash", "-c", f"{tool} | true; exit ${{PIPESTATUS[0]}}"], capture_output=True, check=False)
    assert run.returncode == 2
    assert "cannot write standard output: Broken pipe" in run.stderr.decode()
    assert "Traceback" not in run.stderr.decode()


@pytest.mark.every(3)
@pytest.mark.parametrize("redirection", ["--help | true", "--help > /dev/full", "--list-passes | true"])
def test_help_into_nothing_is_no_traceback(redirection):
    tool = f"{sys.executable} -m steelyard.tools.opt {redirection}"
    run = subprocess.run(["bash", "-c", f"{tool}; exit ${{PIPESTATUS[0]}}"], capture_output=True, check=False)
    assert run.returncode == 2
    assert "cannot write standard output" in run.stderr.decode()
    assert "Traceback" not in run.stderr.decode()


@pytest.mark.every(3)
@pytest.mark.parametrize(("redirection", "code"), [("<&-", 2), ("{source} >&-", 2), ("{source} 2>&-", 0)])
def test_closed_streams_are_no_traceback(redirection, code, tmp_path):
    source = tmp_path / "a.mlir"
    source.write_text(GOOD)
    tool = f"{sys.executable} -m steelyard.tools.opt {redirection.format(source=source)}"
    run = subprocess.run(["bash", "-c", tool], capture_output=True, check=False)
    assert run.returncode == code
    assert "Traceback" not in run.stderr.decode()


WAITING_TOOL = """
import os, sys, time
from steelyard.passes.pipeline.registry import register_pass
from steelyard.tools.opt import main

@register_pass
def wait(module):
    "Wait."
    print(os.getpid(), flush=True)
    time.sleep(60)

sys.exit(main(sys.argv[1:]))
"""


def test_stopping_the_tool_stops_its_child(tmp_path):
    script, source = tmp_path / "run.py", tmp_path / "a.mlir"
    script.write_text(WAITING_TOOL)
    source.write_text(GOOD)
    tool = subprocess.Popen([sys.executable, script, source, "-p", "scaled-wait"], stdout=subprocess.PIPE, text=True)
    child = int(tool.stdout.readline())
    tool.terminate()
    assert tool.wait(20) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_an_impossible_folder_for_dumps_or_reproducers_is_said(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    run = opt(f"--mlir-print-ir-tree-dir={blocker}/tree", "-p", "cse", text=GOOD.encode())
    assert run.returncode == 2
    assert f"cannot write into the folder '{blocker}/tree/" in run.stderr.decode()
    flags = [f"--mlir-pass-pipeline-crash-reproducer={blocker}/r.mlir", "-p", "scaled-legalize{target=tpu}"]
    run = opt(*flags, text=GOOD.encode())
    assert run.returncode == 1
    assert "no reproducer could be written" in run.stderr.decode()


def test_dumps_that_do_not_fit_are_said(tmp_path):
    """A limit on the size of files stands for a full disk."""
    limit = "import resource, sys, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20)); sys.argv[0] = 'opt'; "
    limit += "runpy.run_module('steelyard.tools.opt', run_name='__main__')"
    command = [sys.executable, "-c", limit, f"--mlir-print-ir-tree-dir={tmp_path}/tree", "-p", "cse"]
    run = subprocess.run(command, input=GOOD, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert line.startswith(f"steelyard-opt: error: cannot write into the folder '{tmp_path}/tree/")
    assert "File too large" in line
    assert list(tmp_path.iterdir()) == []


def test_wrong_usage_exits_with_2():
    for arguments in (["--frobnicate"], ["-p", "func.func(scaled-canonicalize)"], ["--time-limit=soon"], ["a", "b"]):
        run = opt(*arguments, text=GOOD.encode())
        assert run.returncode == 2
        assert "error" in run.stderr.decode()


def test_help_and_version_exit_with_0():
    for flag in ("--help", "--version", "--list-passes"):
        run = opt(flag)
        assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("import time; time.sleep(60)", "did not finish within 1 seconds (--time-limit)"),
        ("raise ZeroDivisionError('boom')", "internal error: ZeroDivisionError: boom"),
    ],
)
def test_a_pass_that_crashes_or_hangs_becomes_a_diagnostic_and_a_reproducer(tmp_path, body, words):
    script = tmp_path / "run.py"
    script.write_text(
        "import sys\n"
        "from steelyard.passes.pipeline.registry import register_pass\n"
        "from steelyard.tools.opt import main\n"
        "@register_pass\n"
        f"def misbehave(module):\n    '''Misbehave.'''\n    {body}\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    source, reproducer = tmp_path / "a.mlir", tmp_path / "reproducer.mlir"
    source.write_text(GOOD)
    limit = 1 if "sleep" in body else 60
    flags = ["-p", "cse,scaled-misbehave", f"--time-limit={limit}"]
    flags.append(f"--mlir-pass-pipeline-crash-reproducer={reproducer}")
    run = subprocess.run(
        [sys.executable, str(script), str(source), *flags], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 1
    assert words in run.stderr
    assert str(source) in run.stderr
    assert "Traceback" not in run.stderr
    assert reproducer.read_text() == f"// RUN: steelyard-opt -p cse,scaled-misbehave %s\n{GOOD}"


def test_chunks_keep_their_line_numbers(tmp_path):
    source = tmp_path / "a.mlir"
    source.write_text(GOOD + "// -----\n\n" + 'func.func @g() {\n  "scaled.oops"() : () -> ()\n  return\n}\n')
    run = opt(str(source), "--split-input-file")
    assert f"{source}:5:3: error" in run.stderr.decode()
    assert Path(source).read_text().splitlines()[4] in run.stderr.decode()
