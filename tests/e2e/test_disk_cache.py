"""A program from the disk cache is the program that would have been compiled."""

import errno
import gc
import hashlib
import os
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_mlir import ir

import steelyard
from steelyard import cache_folder, recipes
from steelyard.cache_folder import find_cache
from steelyard.dialect import make_context
from steelyard.dialect.remembered import forget
from steelyard.driver import compilation as compilations
from steelyard.driver import program_cache, stages
from steelyard.driver.settings import make_settings
from steelyard.errors import FileError, NonFiniteError, SteelyardWarning
from steelyard.recipes import CustomRecipe, DelayedScaling, MXFP8BlockScaling
from steelyard.runtime import cpu

HEADING = len(b"steelyard cache 1\n") + 32


class Model(nn.Module):
    """A norm, an activation, a residual and a softmax, so that every stage changes something."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 96), nn.Linear(96, 64)
        self.head = nn.Linear(64, 32, bias=False)

    def forward(self, x):
        x = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        scores = torch.softmax(x @ x.transpose(-1, -2), -1)
        return self.head(scores @ x)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The folder of a cache, which is empty and on."""
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(program_cache, "_said", set())
    return tmp_path / "cache"


@pytest.fixture
def no_passes(monkeypatch):
    """Makes every pass fail from now on."""

    def forbid():
        def fail(*_):
            raise AssertionError("a pass ran")

        monkeypatch.setattr(stages, "_run", fail)

    return forbid


def make(recipe: Any = "mxfp8", model: type[nn.Module] = Model, **options) -> Any:
    torch.manual_seed(0)
    torch._dynamo.reset()
    return steelyard.compile(model(), recipe, **options)


def infer(net) -> list[torch.Tensor]:
    torch.manual_seed(1)
    with torch.no_grad():
        return [net(torch.randn(2, 16, 64))]


def train(net) -> list[torch.Tensor]:
    """The results, gradients and state of two steps."""
    torch.manual_seed(1)
    made = []
    for _ in range(2):
        made.append(net(torch.randn(2, 16, 64)))
        made[-1].square().sum().backward()
    return [*made, *(p.grad for p in net.parameters()), *net.state_dict().values()]


def compiled(net) -> list[compilations.Compilation]:
    return net._steelyard.backend.compilations


def was_cached(net) -> bool:
    (one,) = {compilation.was_cached for compilation in compiled(net)}
    return one


def programs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.program"))


def told(net) -> list:
    """All that a net says about itself."""
    texts = [net.ir(stage) for stage in stages.STAGES]
    kept = [(c.stages, c.rows, c.shortened, dict(c.kept), dict(c.eager_kept)) for c in compiled(net)]
    emitted = [c.program and c.program.text for c in compiled(net)]
    return [texts, kept, emitted, net.explain(), net.explain().to_json(), net.explain().notes, str(net.memory())]


_slow = pytest.mark.slow
USES: list = [
    pytest.param(infer, "mxfp8", {}, marks=_slow),
    (infer, "fp8-block", {"overrides": {"head": None, "up": "nvfp4"}, "attention": True}),
    pytest.param(infer, "nvfp4", {"weights": "quantized"}, marks=_slow),
    pytest.param(train, "mxfp8", {"save": "compact"}, marks=_slow),
    (train, "fp8-delayed", {"check_finite": True}),
    pytest.param(train, "nvfp4", {}, marks=_slow),
]


@pytest.mark.parametrize(("use", "recipe", "options"), USES)
def test_a_cached_program_is_the_compiled_one(use, recipe, options, folder, no_passes, monkeypatch):
    first = make(recipe, **options)
    results = use(first)
    assert not was_cached(first)
    written = programs(folder)
    assert written
    no_passes()
    second = make(recipe, **options)
    assert all(torch.equal(a, b) for a, b in zip(use(second), results, strict=True))
    assert was_cached(second)
    assert programs(folder) == written
    monkeypatch.undo()
    assert told(second) == told(first)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(5))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.every(2)
@pytest.mark.parametrize(("use", "recipe"), [(infer, "mxfp8"), (train, "fp8-delayed")])
def test_a_cached_program_is_bound_to_every_layer(use, recipe, folder, no_passes, monkeypatch):
    first = make(recipe, model=Blocks)
    results = use(first)
    assert len(programs(folder)) < 5 <= len(compiled(first))
    no_passes()
    second = make(recipe, model=Blocks)
    assert all(torch.equal(a, b) for a, b in zip(use(second), results, strict=True))
    assert was_cached(second)
    monkeypatch.undo()
    assert told(second) == told(first)
    assert {row.layer for row in second.explain().rows} == {
        f"blocks.{i}.{name}" for i in range(5) for name in ("up", "down")
    }


def test_a_program_for_cuda(folder, no_passes):
    def lower() -> Any:
        net = make("mxfp8", target="cuda:sm_90a")
        with torch.no_grad():
            return net.lower(torch.randn(2, 16, 64))

    first = lower()
    expected = [first.ir(stage) for stage in (*stages.STAGES, *compilations.CUDA_STAGES)]
    no_passes()
    second = lower()
    assert was_cached(second)
    assert [second.ir(stage) for stage in (*stages.STAGES, *compilations.CUDA_STAGES)] == expected
    assert ".version" in second.ir("ptx")


def test_the_dump_of_every_pass(folder, tmp_path):
    nets = [make(), make()]
    dumps = []
    for i, net in enumerate(nets):
        infer(net)
        net.ir_dump(tmp_path / str(i))
        dumps.append({path.name: path.read_text() for path in (tmp_path / str(i)).rglob("*") if path.is_file()})
    assert was_cached(nets[1])
    assert dumps[0] == dumps[1] != {}


def test_a_cached_program_names_the_layer_that_is_not_finite(folder):
    for _ in range(2):
        net = make(check_finite=True)
        infer(net)
        with torch.no_grad():
            net.model.up.bias.fill_(torch.inf)
        with pytest.raises(NonFiniteError, match="layer 'down'"):
            infer(net)
    assert was_cached(net)


def test_the_parameters_of_another_model_are_not_those_of_the_first(folder, monkeypatch):
    infer(make())
    torch.manual_seed(5)
    other = steelyard.compile(Model(), "mxfp8")
    results = infer(other)
    assert was_cached(other)
    monkeypatch.setenv("STEELYARD_CACHE", "off")
    torch.manual_seed(5)
    assert torch.equal(results[0], infer(steelyard.compile(Model(), "mxfp8"))[0])


def change_the_version(monkeypatch) -> dict:
    monkeypatch.setattr(steelyard, "__version__", "9.9.9")
    return {}


def change_torch(monkeypatch) -> dict:
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    return {}


def change_torch_mlir(monkeypatch) -> dict:
    monkeypatch.setattr(program_cache, "version", lambda name: "9.9.9" if name == "torch-mlir" else version(name))
    return {}


def change_a_source(monkeypatch) -> dict:
    read = Path.read_bytes
    changed = Path(stages.__file__).parents[3] / "passes" / "fuse_epilogue.py"
    assert changed.exists()
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"#" if path.samefile(changed) else b""))
    return {}


def change_the_format(monkeypatch) -> dict:
    monkeypatch.setattr(program_cache, "_FORMAT", 2)
    return {}


def change_the_instructions(monkeypatch) -> dict:
    monkeypatch.setattr(cpu, "isa", lambda: "another")
    return {}


CHANGES: list[Callable[[Any], dict]] = [
    change_the_version,
    change_torch,
    change_torch_mlir,
    change_a_source,
    change_the_format,
    change_the_instructions,
    lambda _: {"recipe": "nvfp4"},
    lambda _: {"recipe": MXFP8BlockScaling(scale_rule="floor")},
    lambda _: {"recipe": MXFP8BlockScaling(backward="dequantized")},
    lambda _: {"overrides": {"head": None}},
    lambda _: {"overrides": {"head": MXFP8BlockScaling(weight_tiles=True)}},
    lambda _: {"attention": True},
    lambda _: {"save": "compact"},
    lambda _: {"check_finite": True},
    lambda _: {"weights": "quantized"},
    lambda _: {"target": "cuda:sm_90a"},
]


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_misses(change, folder, monkeypatch):
    program_cache._versions.cache_clear()
    try:
        traced = b"the bytecode of a graph"
        key = program_cache._key(traced, make_settings("mxfp8"))
        assert key == program_cache._key(traced, make_settings("mxfp8"))
        assert key != program_cache._key(b"another", make_settings("mxfp8"))
        program_cache._versions.cache_clear()
        changed = change(monkeypatch)
        assert program_cache._key(traced, make_settings(**({"recipe": "mxfp8"} | changed))) != key
        monkeypatch.undo()
        program_cache._versions.cache_clear()
        assert program_cache._key(traced, make_settings("mxfp8")) == key
    finally:
        program_cache._versions.cache_clear()


def test_the_order_of_overrides_is_part_of_the_key():
    pairs = [("up", None), ("*", recipes.get("nvfp4"))]
    keys = {program_cache._key(b"", make_settings("mxfp8", overrides=dict(order))) for order in (pairs, pairs[::-1])}
    assert len(keys) == 2


class Own(MXFP8BlockScaling):
    """A recipe with code of its own."""


@pytest.mark.parametrize(
    "recipe",
    [
        CustomRecipe(recipes.get("mxfp8").schemes),
        DelayedScaling(amax_compute_algo=lambda history: history.amax(0)),
        Own(),
    ],
    ids=["factory", "amax", "class"],
)
def test_what_depends_on_the_users_code_is_not_kept(recipe, folder):
    infer(make(recipe))
    infer(make("mxfp8", overrides={"head": recipe}))
    assert not folder.exists()


class Holding(nn.Module):
    """Tensors wherever a model may have them, all of one value."""

    value = struct.unpack("<f", b"\xfa\xce\xb0\x0c"[::-1])[0]

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        with torch.no_grad():
            self.layer.weight.fill_(self.value)
            self.layer.bias.fill_(self.value)
        self.register_buffer("kept", torch.full((64,), self.value))
        self.attribute = torch.full((64,), self.value)
        self.number = torch.tensor(self.value)
        self.listed = [torch.full((3, 64), self.value)]
        constant = torch.full((64,), self.value)
        self.closure = lambda x: x * constant

    def forward(self, x):
        return self.closure(self.layer(x) + self.kept * self.attribute) * self.number + self.listed[0].sum(0)


@pytest.mark.parametrize("has_gradients", [False, True])
def test_no_values_of_tensors_are_kept(has_gradients, folder):
    model = Holding()
    assert model.layer.weight.detach().numpy().tobytes()[:4] == b"\x0c\xb0\xce\xfa"
    with torch.set_grad_enabled(has_gradients):
        results = [steelyard.compile(model, "mxfp8")(torch.ones(4, 64)) for _ in range(2)]
    assert torch.equal(*results)
    (file,) = programs(folder)
    data = zlib.decompress(file.read_bytes()[HEADING:])
    assert b"layer.weight" in data
    for spelling in (b"\x0c\xb0\xce\xfa", b"\xfa\xce\xb0\x0c", b"FACEB00C", f"{Holding.value:.5e}"[:6].encode()):
        assert spelling not in data
        assert spelling.lower() not in data


def warned(run: Callable) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in caught if issubclass(one.category, SteelyardWarning)]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "spoil",
    [flip, lambda path: path.write_bytes(b""), lambda path: path.chmod(0o666), make_folder],
    ids=["flipped bit", "empty", "writable", "folder"],
)
def test_a_spoiled_file_is_ignored_with_one_warning(spoil, folder):
    expected = infer(make())
    (path,) = programs(folder)
    spoil(path)
    results = []
    messages = warned(lambda: results.extend(infer(make())))
    assert torch.equal(results[0], expected[0])
    assert str(path) in messages[0]
    assert messages[0].endswith("; `steelyard cache clear` removes it")
    if path.is_file():
        # It was written again.
        assert len(messages) == 1
        net = make()
        assert warned(lambda: infer(net)) == []
        assert was_cached(net)
    else:
        assert len(messages) == 2
        assert f"programs cannot be kept in the cache folder '{folder}': Is a directory" in messages[1]
        assert warned(lambda: infer(make())) == []


def with_a_wrong_module(data: bytes) -> bytes:
    lowering = program_cache._decode(data)
    with ir.Context():
        module = ir.Module.parse("func.func @f() -> i32 { %0 = arith.constant 1 : i32\n return %0 : i32 }")
        module.body.operations[0].attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([], []))
        wrong = dict(lowering.stages) | {"lowered": compilations._bytecode(module)}
    return program_cache._encode(replace(lowering, stages=wrong))


WRONG: list[Callable[[bytes], bytes]] = [
    lambda data: data[:-2],
    lambda data: zlib.compress(b""),
    lambda data: zlib.compress((2).to_bytes(8) + b"{}"),
    lambda data: zlib.compress((2).to_bytes(8) + b"[]"),
    lambda data: zlib.compress(zlib.decompress(data)[:-100]),
    with_a_wrong_module,
]


def test_a_file_that_is_signed_but_wrong_is_ignored_too(folder, capfd):
    net = make()
    expected = infer(net)
    (path,), (one,), cache = programs(folder), compiled(net), find_cache()
    assert cache is not None
    right = cache.read(path.stem)
    assert right is not None
    for change in WRONG:
        program_cache._said.clear()
        cache.write(path.stem, change(right))
        place = program_cache.CachedLowering(one.stages["traced"], one.settings)
        found = []
        (message,) = warned(lambda place=place, found=found: found.append(place.load(make_context())))
        assert found == [None]
        assert f"'{path}' of the cache is ignored, because it cannot be read: " in message
    again = make()
    assert torch.equal(infer(again)[0], expected[0])
    assert not was_cached(again)
    assert cache.read(path.stem) == right
    assert capfd.readouterr().err == ""


def test_a_cache_that_cannot_be_written_is_one_warning(folder, monkeypatch):
    monkeypatch.setenv("STEELYARD_CACHE", "/dev/null/cache")
    messages = warned(lambda: [infer(make(recipe)) for recipe in ("mxfp8", "nvfp4")])
    what = "programs cannot be kept in the cache folder '/dev/null/cache': Not a directory"
    assert messages == [f"{what}; set STEELYARD_CACHE to another folder, or to off"]


def test_a_full_disk_is_one_warning(folder, monkeypatch):
    def fill(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache_folder, "replace_file", fill)
    (message,) = warned(lambda: [infer(make(recipe)) for recipe in ("mxfp8", "nvfp4")])
    assert message.startswith(f"programs cannot be kept in the cache folder '{folder}': No space left on device; set ")


def test_a_wrong_size_is_one_warning(folder, monkeypatch):
    monkeypatch.setenv("STEELYARD_CACHE_SIZE", "huge")
    (message,) = warned(lambda: [infer(make(recipe)) for recipe in ("mxfp8", "nvfp4")])
    assert message == "STEELYARD_CACHE_SIZE must be a number of bytes, as in 512M or 2G, got 'huge'"
    assert not folder.exists()


def test_a_warning_that_is_an_error_is_not_taken_for_a_fault_of_ours(folder, monkeypatch):
    monkeypatch.setenv("STEELYARD_CACHE", "/dev/null/cache")
    with warnings.catch_warnings():
        warnings.simplefilter("error", SteelyardWarning)
        with pytest.raises(FileError, match="programs cannot be kept in the cache folder '/dev/null/cache'"):
            infer(make())


def test_a_cache_that_is_off_writes_nothing(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("STEELYARD_CACHE", "off")
    monkeypatch.chdir(tmp_path)
    infer(make())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_cached_programs_leave_no_contexts_behind(folder):
    def live() -> int:
        forget()
        for _ in range(4):
            gc.collect()
        return ir.Context._get_live_count()  # pyright: ignore[reportAttributeAccessIssue]

    before = live()
    nets = [make() for _ in range(3)]
    for net in nets:
        infer(net)
    assert [was_cached(net) for net in nets] == [False, True, True]
    assert live() <= max(before, 1)


_COLD = """
import hashlib, sys, time, warnings
from pathlib import Path
import torch, steelyard
warnings.simplefilter("error", steelyard.errors.SteelyardWarning)
sys.path.insert(0, sys.argv[1])
import test_disk_cache as cases
Path(sys.argv[2], sys.argv[3]).touch()
while len(list(Path(sys.argv[2]).iterdir())) < 2:
    time.sleep(0.001)
digest = hashlib.sha256()
for recipe in ("mxfp8", "nvfp4"):
    digest.update(cases.infer(cases.make(recipe))[0].numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_processes_that_compile_the_same_at_once(folder, request, tmp_path):
    (tmp_path / "ready").mkdir()
    command = [sys.executable, "-c", _COLD, str(request.path.parent), str(tmp_path / "ready")]
    running = [subprocess.Popen([*command, str(i)], stdout=-1, stderr=-1, text=True) for i in range(2)]
    answers = []
    for process in running:
        out, errors = process.communicate(timeout=240)
        assert (process.returncode, errors) == (0, "")
        answers.append(out.strip())
    assert len(programs(folder)) == 2
    # Paths and lines are the same in this process, so that it finds the programs of those two.
    digest = hashlib.sha256()
    for recipe in ("mxfp8", "nvfp4"):
        net = make(recipe)
        digest.update(infer(net)[0].numpy().tobytes())
        assert was_cached(net)
    assert answers == [digest.hexdigest()] * 2
