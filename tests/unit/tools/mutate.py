"""Mutants of the lit tests' texts, and how `steelyard-opt` handles them."""

import os
import random
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from steelyard.dialect import make_context, parse_module, print_module
from steelyard.errors import AssemblyError
from steelyard.tools.opt import main

TESTS = Path(__file__).parents[2]
PIPELINES = (
    "",
    "scaled-canonicalize",
    "cse,scaled-canonicalize",
    "steelyard-quantized{recipe=mxfp8}",
    "steelyard-quantized{recipe=nvfp4},canonicalize",
    "scaled-apply-recipe{recipe=fp8-delayed without-parameters},scaled-insert-quantize,scaled-hoist-weights",
    "steelyard-raised,steelyard-quantized{recipe=fp8-current},steelyard-fused,scaled-hoist-weights",
    "scaled-merge-quantize,scaled-fuse-producer,scaled-fuse-epilogue,cse",
)
SNIPPETS = (
    *("0", "-1", "1", "99999999999999999999", "9223372036854775808", "1.0e400", "0x7FF", "?", "*", "tensor<", "none"),
    *("unit", "!scaled.tensor<", "#scaled.scheme<", "!torch.vtensor<[", '"', "{{", "}}", "->", "loc(unknown)"),
    *("\\", "é"),
    *("scaled.gemm", "scaled.", "fprop", "bias(", "at", 'at "up"', "epilogue(none)", "#mxfp8_1x32", "8x64xf32, ", ":"),
    *("f8E4M3FN", "f4E2M1FN", "f32", "i1", "index", "array<i32: 1, 2, 3>", "array<i64>", "dense<0> : ", "@", "^bb0"),
    *("\x00", "\x7f", "// -----\n", "module {", "func.func @f() {", "return", "<" * 300, "(" * 300),
)
_WORD = re.compile(rb"[\w.?#!%-]+|\"[^\"]*\"|[^\w\s]")


@dataclass(frozen=True)
class Outcome:
    """How one run ended; `exit_code` is None for a signal or a timeout."""

    exit_code: int | None
    stderr: str
    how: str

    @property
    def is_graceful(self) -> bool:
        # A crash in the child, or a bug in a pass, is a bug even if it is reported well.
        bad = ("Traceback", "internal error", "died of", "did not finish")
        return self.exit_code in (0, 1, 2) and not any(word in self.stderr for word in bad)


def corpus() -> tuple[list[bytes], list[bytes]]:
    """The valid functions of the lit tests, in both forms, and the parts of those that are wrong on purpose."""
    paths = sorted(path for folder in ("dialect", "passes", "tools") for path in (TESTS / folder).glob("*.mlir"))
    right, wrong = [], []
    for path in paths:
        for part in path.read_bytes().split(b"// -----\n"):
            if b"expected-error" in part or b"not steelyard-opt" in part:
                wrong.append(part)
            else:
                right += _functions(part)
    return [*right, *_generic_forms(right)], wrong


def _functions(text: bytes) -> list[bytes]:
    """Each function of a text alone, with the aliases it may use, so that a mutation breaks only one."""
    aliases = b"".join(line + b"\n" for line in text.splitlines() if line.startswith((b"#", b"!")))
    return [aliases + match.group() for match in re.finditer(rb"^func\.func .*?^}\n", text, re.DOTALL | re.MULTILINE)]


def _generic_forms(texts: list[bytes]) -> Iterator[bytes]:
    """The same functions in MLIR's generic form, but for those that call one of another text."""
    context = make_context()
    for text in texts:
        with suppress(AssemblyError):
            module = parse_module(text.decode(), context)
            yield print_module(module.operation, generic=True).encode()


def mutants(seed: int, count: int) -> Iterator[tuple[bytes, str]]:
    """Mutated texts, each with a pipeline to run on it; some are still right, so that passes run too."""
    chance = random.Random(seed)
    right, wrong = corpus()
    parts = right + wrong
    for _ in range(count):
        if chance.random() < 0.4:
            text = _resize(chance.choice(right), chance)
        else:
            text = chance.choice(chance.choice((right, wrong)))
            for _ in range(chance.choice((1, 1, 2, 4))):
                text = _mutate(text, parts, chance)
        yield text, chance.choice(PIPELINES)


def _resize(text: bytes, chance: random.Random) -> bytes:
    """Replace one number everywhere in a text: the result is mostly still right, with unusual sizes."""
    numbers = sorted({match.group() for match in re.finditer(rb"\b\d+\b", text)})
    if not numbers:
        return text
    old, new = chance.choice(numbers), chance.choice((b"0", b"1", b"3", b"33", b"127", b"65536"))
    return re.sub(rb"\b" + old + rb"(?=\b|x)", new, text)


def run(text: bytes, pipeline: str, time_limit: float = 60) -> Outcome:
    """Run the tool on a text in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path, stderr = Path(folder, "mutant.mlir"), Path(folder, "stderr")
        path.write_bytes(text)
        pid = os.fork()
        if pid == 0:
            _run_tool(path, stderr, pipeline)
        status = _wait(pid, time_limit)
        messages = stderr.read_text(errors="replace") if stderr.exists() else ""
    if status is None:
        return Outcome(None, messages, "timeout")
    if os.WIFSIGNALED(status):
        return Outcome(None, messages, signal.Signals(os.WTERMSIG(status)).name)
    return Outcome(os.WEXITSTATUS(status), messages, "exit")


def _run_tool(path: Path, stderr: Path, pipeline: str) -> None:
    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
        reproducer = ["--mlir-pass-pipeline-crash-reproducer", str(path) + ".reproducer"]
        code = main([str(path), "--split-input-file", "-p", pipeline, "--time-limit=30", *reproducer])
    finally:
        os._exit(code)


def _wait(pid: int, time_limit: float) -> int | None:
    deadline = time.monotonic() + time_limit
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _mutate(text: bytes, parts: list[bytes], chance: random.Random) -> bytes:
    words = list(_WORD.finditer(text))
    if not words:
        return text + chance.choice(SNIPPETS).encode()
    here, there = chance.choice(words), chance.choice(words)
    start, end = sorted((here.start(), there.start()))
    match chance.randrange(8):
        case 0:
            return text[: here.start()] + text[here.end() :]
        case 1:
            return text[: here.start()] + there.group() + text[here.end() :]
        case 2:
            return text[: here.start()] + chance.choice(SNIPPETS).encode() + text[here.end() :]
        case 3:
            return text[: here.start()] + chance.choice(SNIPPETS).encode() + text[here.start() :]
        case 4:
            return text[: here.start()]
        case 5:
            return text[:end] + text[start:end] + text[end:]
        case 6:
            flipped = bytearray(text)
            flipped[here.start()] ^= 1 << chance.randrange(8)
            return bytes(flipped)
        case _:
            other = chance.choice(parts)
            return text[: here.start()] + other[chance.randrange(len(other) + 1) :]
