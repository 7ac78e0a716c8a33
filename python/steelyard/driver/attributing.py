"""`net.attribute`: what each layer adds to the error of the whole model.

One program has a switch for each layer's GEMMs. It runs with one layer quantized and with all but one, for each layer
and each batch. What is found is kept in a file on request, so that a run that was interrupted goes on.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from steelyard.driver import progress
from steelyard.driver.measuring import check_batches, check_measurable, read_batch, unchanged_gradients
from steelyard.driver.settings import INFLUENCE, SWITCHED, WEIGHTS
from steelyard.errors import FileError, ResultError, UnsupportedModelError, shown
from steelyard.files import check_writable, write_file
from steelyard.insight.collecting import Collector
from steelyard.insight.outputs import OutputTotal, find_output
from steelyard.insight.results import VERSION, Attribution, LayerAttribution
from steelyard.insight.statistics import rank_correlation
from steelyard.passes.insert_switches import SWITCH
from steelyard.runtime import _cpu
from steelyard.runtime.state import State

_SECONDS_BETWEEN_WRITES = 5.0
_WIDTH_OF_BAR = 10

Sums = tuple[float, float, float, int]
"""Of one run: the sums of squares of errors and of outputs, that of divergences, NaN if there are none, and of how
many positions."""


def attribute_batches(
    net: Any,
    batches: Iterable[Any],
    *,
    logits: bool | None,
    estimate: bool,
    layers: int | None,
    path: str | Path | None,
) -> Attribution:
    """What each layer adds to the error, over all batches."""
    check_batches(batches)
    check_measurable(net)
    _check_layers(layers, estimate)
    estimates: dict[str, float] = {}
    with progress.call():
        if layers is not None:
            batches = list(batches)
            estimates = _estimates(net, batches, logits)
            if batches and not estimates:
                raise ResultError("layers= needs estimates, and a net without gradients has none; leave out layers=")
        runs = _Runs(net, logits, None if path is None else _File(Path(path)), _chosen(estimates, layers))
        for batch in batches:
            with net._unchanged():
                runs.run(batch)
        if not runs.batches:
            raise ResultError("batches must hold at least one batch, got none")
        if estimate and not estimates:
            estimates = _estimates(net, runs.batches, logits)
    rows = [
        LayerAttribution(layer, runs.error(f"only {layer}"), runs.error(f"without {layer}"), estimates.get(layer))
        for layer in runs.layers
    ]
    pairs = [(row.estimated_error, row.only_error) for row in rows]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    agreement = rank_correlation([a for a, _ in known], [b for _, b in known])
    kind = "kl_divergence" if runs.is_logits else "relative_error"
    recipe = net._steelyard.backend.settings.recipe.name
    return Attribution(recipe, len(runs.batches), rows, runs.error("all"), agreement, kind)


def _check_layers(layers: Any, estimate: bool) -> None:
    if layers is None:
        return
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 0:
        raise ResultError(f"layers must be how many layers are run alone, at least 0, got {shown(layers)}")
    if not estimate:
        raise ResultError("layers= chooses layers by their estimates; leave out estimate=False")


def _chosen(estimates: Mapping[str, float], count: int | None) -> set[str] | None:
    """Layers to run alone: half of them have the largest estimates, the others are spread over the rest."""
    if count is None:
        return None
    ranked = sorted(estimates, key=lambda layer: -estimates[layer])
    largest, rest = ranked[: (count + 1) // 2], ranked[(count + 1) // 2 :]
    spread = min(count - len(largest), len(rest))
    return {*largest, *(rest[(2 * number + 1) * len(rest) // (2 * spread)] for number in range(spread))}


class _Runs:
    """The runs of the program with switches."""

    def __init__(self, net: Any, logits: bool | None, file: "_File | None", chosen: set[str] | None):
        self._net = net
        self._logits = logits
        self._file = file
        self._chosen = chosen
        """The layers that are run; None for all."""
        own = net._steelyard.backend.state
        # Switches are state, and no part of the net's.
        self._state = State()
        self._state.tensors = {name: tensor.clone() for name, tensor in own.tensors.items()}
        self._switched = net._variant(SWITCHED, self._state)
        self._sums: dict[str, list[Sums]] = {}
        self._random = torch.get_rng_state()
        self.batches: list[Any] = []
        self.layers: list[str] = []
        self.is_logits = False

    def run(self, batch: Any) -> None:
        """Every run of one batch."""
        arguments, keywords = read_batch(batch)
        self._random = torch.get_rng_state()
        with torch.no_grad():
            exact, self.is_logits = find_output(self._net._steelyard.model(*arguments, **keywords), self._logits)
            self._switched(*arguments, **keywords)
            self._find_layers()
            names = ["all", *(f"{kind} {layer}" for layer in self._run_layers() for kind in ("only", "without"))]
            with self._kept(f"batch {len(self.batches)}", batch) as runs:
                self._run_all(names, runs, partial(self._measure, arguments, keywords, exact))
        self.batches.append(batch)

    def _run_all(self, names: list[str], runs: dict[str, Sums], measure: Callable[[str], Sums]) -> None:
        """The runs with these names; those that are known already are not repeated."""
        bar = _Bar(len(self.batches) + 1, len(names))
        with progress.doing(bar.text):
            for name in names:
                if name not in runs:
                    runs[name] = measure(name)
                    bar.measured += 1
                    if self._file is not None:
                        self._file.write_now_and_then()
                bar.done += 1
                self._sums.setdefault(name, []).append(runs[name])

    def _run_layers(self) -> list[str]:
        return [layer for layer in self.layers if self._chosen is None or layer in self._chosen]

    @contextmanager
    def _kept(self, name: str, batch: Any) -> Iterator[dict[str, Sums]]:
        """The runs of a batch that are known already; what is added to them is kept, also if a run fails."""
        if self._file is None:
            yield {}
            return
        try:
            yield self._file.begin(self._key(batch), name)
        finally:
            self._file.write()

    def _find_layers(self) -> None:
        names = [name for name in self._state.tensors if name == SWITCH or name.endswith(f".{SWITCH}")]
        self.layers = [name.removesuffix(SWITCH).removesuffix(".") for name in names]
        if not self.layers:
            raise UnsupportedModelError(
                "a net whose error is attributed must have a quantized GEMM, and this one has none; "
                "net.explain() says why"
            )

    def _measure(self, arguments: tuple, keywords: dict[str, Any], exact: torch.Tensor, name: str) -> Sums:
        kind, _, layer = name.partition(" ")
        for each in self.layers:
            is_on = kind == "all" or (each == layer) == (kind == "only")
            self._state.tensors[f"{each}.{SWITCH}" if each else SWITCH] = torch.tensor(float(is_on))
        total = OutputTotal()
        # All runs of a batch draw the same random numbers.
        torch.set_rng_state(self._random)
        found, _ = find_output(self._switched(*arguments, **keywords), self._logits)
        total.add(found, exact, is_logits=self.is_logits)
        divergence = math.nan if total.divergence is None else total.divergence
        return total.error_square_sum, total.square_sum, divergence, total.positions

    def error(self, name: str) -> float | None:
        """The error of one kind of run, over all batches; None if there was none."""
        if name not in self._sums:
            return None
        errors, squares, divergences, positions = (sum(column) for column in zip(*self._sums[name], strict=True))
        total = OutputTotal()
        total.error_square_sum, total.square_sum, total.positions = errors, squares, int(positions)
        total.divergence = None if math.isnan(divergences) else divergences
        return total.error()

    def _key(self, batch: Any) -> str:
        """What a file must be about to be gone on with: the model's values, the recipe, the layers and the batch."""
        digest = hashlib.sha256(repr((self._net._steelyard.backend.settings, self.layers)).encode())
        for parameter in self._net.parameters():
            storage = parameter.untyped_storage()
            # A few words of each; there may be billions.
            words = _cpu.fingerprint(storage.data_ptr(), storage.nbytes()) if storage.data_ptr() else 0
            digest.update(repr((tuple(parameter.shape), words)).encode())
        for leaf in pytree.tree_leaves(batch):
            is_plain = type(leaf) is torch.Tensor and leaf.layout is torch.strided
            whole = leaf.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if is_plain else b""
            digest.update(repr(getattr(leaf, "shape", leaf)).encode() + whole)
        return digest.hexdigest()


class _Bar:
    """Where the runs of a batch are."""

    def __init__(self, batch: int, count: int):
        self._batch, self._count = batch, count
        self._start = time.monotonic()
        self.done = 0
        self.measured = 0

    def text(self) -> str:
        """A bar, the number of the run, and how long the others will take."""
        filled = _WIDTH_OF_BAR * self.done // self._count
        bar = f"[{'#' * filled}{'-' * (_WIDTH_OF_BAR - filled)}]"
        left = ""
        if self.measured:
            seconds = (time.monotonic() - self._start) / self.measured * (self._count - self.done)
            left = f", {math.ceil(seconds / 60)} min left" if seconds > 90 else f", {math.ceil(seconds)} s left"
        number = min(self.done + 1, self._count)
        return f"attributing {bar} batch {self._batch}, run {number} of {self._count}{left}"


class _File:
    """What was found so far, as JSON: for each batch its key, and the sums of each run."""

    def __init__(self, path: Path):
        self._path = path
        self._batches: dict[str, dict[str, Any]] = {}
        self._written = time.monotonic()
        check_writable(path)
        if path.is_file() and path.stat().st_size:
            self._batches = self._read()

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self._path.read_text())
            if found["version"] != VERSION:
                raise ValueError(f"version {found['version']}")
            return {
                name: {"key": str(one["key"]), "runs": {run: tuple(map(float, s)) for run, s in one["runs"].items()}}
                for name, one in found["batches"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{self._path} must be what net.attribute keeps between runs, got {error}; choose another path"
            raise FileError(message) from error

    def begin(self, key: str, batch: str) -> dict[str, Sums]:
        """The runs of a batch that are known already, to which others are added."""
        known = self._batches.setdefault(batch, {"key": key, "runs": {}})
        if known["key"] != key:
            raise ResultError(
                f"{self._path} must be about the same model, recipe and batches, and {batch} there is about others; "
                "delete the file, or choose another path"
            )
        return known["runs"]

    def write_now_and_then(self) -> None:
        """Write what is known, if the last time was some seconds ago: a process may be ended without a word."""
        if time.monotonic() - self._written >= _SECONDS_BETWEEN_WRITES:
            self.write()

    def write(self) -> None:
        """Write what is known."""
        self._written = time.monotonic()
        batches = {
            name: {"key": one["key"], "runs": {run: list(map(_number, sums)) for run, sums in one["runs"].items()}}
            for name, one in self._batches.items()
        }
        write_file(self._path, json.dumps({"version": VERSION, "batches": batches}, allow_nan=False).encode())


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _estimates(net: Any, batches: Iterable[Any], logits: bool | None) -> dict[str, float]:
    """What one backward per batch predicts for each layer alone, none where the net has no gradients.

    To second order, errors e of a layer's results add e' F e / 2 to the divergence, with the Fisher information F, the
    mean of g g' over gradients g of the log-likelihood of outcomes that the model itself draws. One draw stands for the
    mean, and each row of a result is taken by itself. Where outputs are no logits, a random direction of them stands
    for all: the mean square of its gradient times e is the square of the output's error.
    """
    if net._steelyard.backend.settings.weights != WEIGHTS[0]:
        return {}
    if not any(parameter.requires_grad for parameter in net.parameters()):
        return {}
    squares, positions, is_logits = 0.0, 0, False
    measured = net._variant(INFLUENCE)
    with _collecting(measured) as collector, progress.doing(lambda: "estimating what each layer adds to the error"):
        for batch in batches:
            arguments, keywords = read_batch(batch)
            with net._unchanged(), unchanged_gradients(net), torch.enable_grad():
                output, is_logits = find_output(measured(*arguments, **keywords), logits)
                _probe(output, is_logits).backward()
            squares += float(output.detach().double().square().sum())
            positions += output.shape[:-1].numel()
    sums = collector.influences()
    if is_logits:
        return {layer: found / 2 / positions for layer, found in sums.items()}
    return {layer: math.sqrt(found / squares) for layer, found in sums.items()} if squares else {}


def _probe(output: torch.Tensor, is_logits: bool) -> torch.Tensor:
    """A number whose gradient shows what an error does to the output."""
    generator = torch.Generator().manual_seed(0)
    if not is_logits:
        direction = torch.randn(output.shape, generator=generator, dtype=torch.float32)
        return (output * direction.to(output.dtype)).sum()
    log_likelihood = output.flatten(0, -2).float().log_softmax(-1)
    drawn = torch.multinomial(log_likelihood.detach().exp(), 1, generator=generator)
    return log_likelihood.gather(1, drawn).sum()


@contextmanager
def _collecting(net: Any) -> Iterator[Collector]:
    """A context in which what a net's programs measure is collected."""
    collector, state = Collector(), net._steelyard.backend.state
    before = state.take_measures
    state.take_measures = collector.add
    try:
        yield collector
    finally:
        state.take_measures = before
