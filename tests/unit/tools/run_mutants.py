"""Runs `steelyard-opt` on the mutants of a seed: `python run_mutants.py SEED COUNT` prints every bad answer.

Workers run the work of the tool's child process without a fork per mutant, so that a mutant costs milliseconds. A
worker that dies, or hangs, is itself the bad answer to the mutant that it was at, and another goes on after it.
"""

import io
import os
import re
import select
import signal
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout

import mutate

from steelyard.tools.opt import driver
from steelyard.tools.opt.arguments import parse_arguments
from steelyard.tools.opt.source import Source, SourceError, check_text

SECONDS = 60
PER_WORKER = 500
"""Each worker lives for so many mutants, so that a crash costs few of them."""
_BAD_WORDS = ("Traceback", "internal error", "LLVM ERROR")
_ERROR = re.compile(r"^[^\n]*error: ", re.MULTILINE)


class _Output(io.StringIO):
    """Standard output that takes bytes, too."""

    def __init__(self):
        super().__init__()
        self.buffer = io.BytesIO()


def answer(text: bytes, pipeline: str, reproducer: str) -> tuple[int, str]:
    """The exit code and the messages of the tool."""
    source, messages = Source("mutant.mlir", text), io.StringIO()
    with redirect_stdout(_Output()), redirect_stderr(messages):
        try:
            check_text(source)
            flags = ["-", "--split-input-file", "-p", pipeline, "--mlir-pass-pipeline-crash-reproducer", reproducer]
            code = driver.run(source, parse_arguments(flags))
        except SourceError as error:
            code = 1
            messages.write(f"error: {error.message}")
    return code, messages.getvalue()


def what_is_wrong(code: int, messages: str) -> str:
    """Why an answer is bad; empty for a good one."""
    bad = next((line for line in messages.splitlines() if any(word in line for word in _BAD_WORDS)), "")
    if bad:
        return bad
    if code not in (0, 1, 2):
        return f"exit code {code}"
    return f"exit code {code} with the messages {messages!r}" if bool(code) != bool(_ERROR.search(messages)) else ""


def _work(cases: list[tuple[bytes, str]], pipe: int) -> None:
    """Answer cases one by one; a line for each says its number, its exit code and what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        for number, (text, pipeline) in enumerate(cases):
            try:
                code, messages = answer(text, pipeline, f"{folder}/reproducer.mlir")
                wrong = what_is_wrong(code, messages)
            except BaseException as error:
                code, wrong = 70, f"{type(error).__name__}: {error}"
            os.write(pipe, f"{number} {code} {wrong[:500].replace(chr(10), ' ')}\n".encode())


def run_worker(cases: list[tuple[bytes, str]]) -> list[tuple[int, str]]:
    """The answers of a worker, up to the case at which it died, which is one of them."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _work(cases, writing)
        os._exit(0)
    os.close(writing)
    answers: list[tuple[int, str]] = []
    rest, ended = b"", ""
    while not ended:
        ready, _, _ = select.select([reading], [], [], SECONDS)
        data = os.read(reading, 65536) if ready else b""
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            _, code, wrong = line.decode().split(" ", 2)
            answers.append((int(code), wrong))
        if not data:
            ended = "died" if ready else f"did not finish in {SECONDS} s"
    os.close(reading)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if len(answers) < len(cases):
        how = f"died of signal {os.WTERMSIG(status)}" if ended == "died" and os.WIFSIGNALED(status) else ended
        answers.append((70, how))
    return answers


def check_mutants(seed: int, count: int) -> int:
    """Run every mutant of a seed; returns how many answers were bad."""
    cases, codes, bad = list(mutate.mutants(seed, count)), Counter[int](), 0
    while cases:
        answers = run_worker(cases[:PER_WORKER])
        for (text, pipeline), (code, wrong) in zip(cases, answers, strict=False):
            codes[code] += 1
            if wrong:
                bad += 1
                print(f"{wrong}\n  with pipeline {pipeline!r} on {text!r}", file=sys.stderr)
        cases = cases[len(answers) :]
    # Right texts test the passes, wrong ones the diagnostics: both must be there.
    if codes[0] <= count / 8 or codes[1] <= count / 4:
        sys.exit(f"too few mutants are right, or too few are wrong: {codes}")
    print(f"{count} mutants: {dict(codes)}")
    return bad


if __name__ == "__main__":
    sys.exit(1 if check_mutants(int(sys.argv[1]), int(sys.argv[2])) else 0)
