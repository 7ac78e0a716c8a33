"""Factors that make inputs and weights easier to round, taken over by what computes the input: SmoothQuant and AWQ.

The columns of a weight are multiplied by factors, and the norm or linear layer before it is divided by them. Where that
changes nothing is not guessed from names: a part of the model is run in float64 with random factors, and must give what
it gave without.
"""

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from steelyard.driver import progress
from steelyard.recipes import Recipe
from steelyard.tuning.batches import Batch, call, copied, for_inference
from steelyard.tuning.emulation import rounded_input
from steelyard.tuning.grids import input_scheme, searched
from steelyard.tuning.layers import Group, all_layers, find_layers, readers_of

_EXPONENTS = ((0.0, 0.0), (0.25, 0.0), (0.5, 0.0), (0.75, 0.0), (0.25, 0.25), (0.5, 0.5), (0.75, 0.25))
"""Of the size of inputs, and of weights, in the factors that are tried: AWQ has the former alone, SmoothQuant both."""
_LARGEST_FACTOR = 16.0
_ROWS = 256
"""How many rows of a weight, evenly spaced, factors are judged by."""
_TOLERANCE = 1e-9
_TOKENS = 16
"""How many tokens of a row folds are tried with: that they change nothing does not depend on the number."""
_PARTS = (2, 3)
"""How many layers one may hold beside the one that is divided: gate and up, or q, k and v."""


@dataclass(frozen=True)
class Fold:
    """What takes over the factors of a group's input."""

    source: str
    """A norm or a linear layer."""
    first: int
    """The first row of the source that is divided."""
    places: tuple[int, ...]
    """For each column of the group, the number of its factor: several columns share one where key heads are shared."""
    offset: float = 0.0
    """What a norm adds to its weight before it multiplies."""

    @property
    def count(self) -> int:
        """How many factors there are."""
        return max(self.places) + 1

    def apply(self, model: nn.Module, group: Group, factors: torch.Tensor) -> None:
        """Divide the source by factors, and multiply the columns of the group's weights."""
        module: Any = model.get_submodule(self.source)
        layers = all_layers(model)
        rows, factors = slice(self.first, self.first + self.count), factors.double()
        if _is_norm(module):
            weight = module.weight.data
            weight[rows] = ((weight[rows].double() + self.offset) / factors - self.offset).to(weight.dtype)
        else:
            source = layers[self.source]
            values = source.matrices().double()
            values[:, rows] /= factors[:, None]
            source.put(values)
        if getattr(module, "bias", None) is not None:
            module.bias.data[rows] = (module.bias.data[rows].double() / factors).to(module.bias.dtype)
        for layer in map(layers.__getitem__, group.layers):
            layer.put(layer.matrices().double() * factors[list(self.places)])

    def parameters(self, model: nn.Module) -> list[str]:
        """The names of the source's parameters."""
        return [f"{self.source}.{name}" for name, _ in model.get_submodule(self.source).named_parameters(recurse=False)]


@dataclass
class _Calls:
    """What one batch did with norms, linear layers and the modules around them."""

    order: list[str]
    made: dict[int, str]
    """The module that returned a tensor, by the tensor's id."""
    read: dict[str, Any]
    """The tensor that a layer was given."""
    kept: list[Any]
    """Keeps tensors alive, so that no two have one id."""


@torch.no_grad()
def find_folds(model: nn.Module, groups: Sequence[Group], batch: Batch) -> dict[str, Fold]:
    """The folds that are exact, by the names of groups."""
    calls = _watch(model, batch)
    search = _Search(model, calls)
    candidates = {group.name: search.candidates(group, earlier) for earlier, group in _in_turn(groups)}
    scopes = {
        (group.name, fold): _scope(model, [fold.source, *group.layers])
        for group in groups
        for fold in candidates[group.name]
    }
    found: dict[str, Fold] = {}
    with for_inference(model), progress.doing(lambda: "looking for factors that can be folded"):
        arguments = _calls_of_trials(model, set(scopes.values()), batch)
        trials = {scope: _Trial(model, scope, *arguments[scope]) for scope in arguments}
        for group in groups:
            progress.step(group.name)
            for fold in candidates[group.name]:
                trial = trials.get(scopes[group.name, fold])
                if trial is not None and trial.is_exact(fold, group):
                    found[group.name] = fold
                    break
    return found


def _in_turn(groups: Sequence[Group]) -> list[tuple[Group | None, Group]]:
    """Each group with the one before it."""
    return [(None, groups[0]), *pairwise(groups)]


def _watch(model: nn.Module, batch: Batch) -> _Calls:
    calls = _Calls([], {}, {}, [])

    def note(name: str):
        def hook(_, given: tuple, made: Any) -> None:
            calls.order.append(name)
            calls.kept.append((given, made))
            if given:
                calls.read[name] = given[0]
            if isinstance(made, torch.Tensor):
                calls.made[id(made)] = name

        return hook

    linear = [name for name, layer in find_layers(model, []).items() if not layer.is_stack]
    leaves = [(name, module) for name, module in model.named_modules() if name in linear or _is_norm(module)]
    handles = [module.register_forward_hook(note(name)) for name, module in leaves]
    try:
        with for_inference(model):
            call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _is_norm(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    return "norm" in type(module).__name__.lower() and weight is not None and weight.dim() == 1


class _Search:
    """Finds what may take over the factors of groups."""

    def __init__(self, model: nn.Module, calls: _Calls):
        self._model, self._calls = model, calls
        self._layers, self._readers = all_layers(model), readers_of(model)
        self._counts = Counter(calls.order)

    def candidates(self, group: Group, earlier: Group | None) -> list[Fold]:
        """What may take over the factors of a group, likely ones first."""
        if group.calls != 1 or any(self._counts[layer] != 1 for layer in group.layers):
            return []
        columns = self._layers[group.layers[0]].matrices().shape[2]
        maker = self._calls.made.get(id(self._calls.read[group.layers[0]]))
        sources = [] if maker is None else [maker]
        parent = group.layers[0].rpartition(".")[0]
        if earlier is not None and earlier.layers[0].rpartition(".")[0] == parent:
            # The last of several is the value's, or the one that is not activated.
            sources += [name for name in reversed(earlier.layers) if name not in sources]
        heads = getattr(self._model.get_submodule(parent), "head_dim", None)
        made = [fold for name in sources if self._is_own(name) for fold in self._folds(name, columns, heads)]
        return [fold for fold in made if fold.source not in group.layers]

    def _is_own(self, name: str) -> bool:
        """Whether a module is called once, and nothing else reads its parameters."""
        own = self._model.get_submodule(name).parameters(recurse=False)
        return self._counts[name] == 1 and all(self._readers[id(parameter)] == 1 for parameter in own)

    def _folds(self, source: str, columns: int, head: Any) -> list[Fold]:
        """How a module may be divided for a group of so many columns."""
        module: Any = self._model.get_submodule(source)
        each = tuple(range(columns))
        if _is_norm(module):
            return [Fold(source, 0, each, offset) for offset in (0.0, 1.0)] if len(module.weight) == columns else []
        rows = self._layers[source].matrices().shape[1]
        if rows == columns:
            return [Fold(source, 0, each)]
        if isinstance(head, int) and head > 0 and columns % rows == rows % head == 0:
            shared = columns // rows
            return [Fold(source, 0, tuple(column // (head * shared) * head + column % head for column in each))]
        return [Fold(source, rows - columns, each)] if rows in [count * columns for count in _PARTS] else []


def _scope(model: nn.Module, names: Sequence[str]) -> str:
    """The smallest module with a forward of its own that has all of these."""
    paths = [name.split(".") for name in names]
    shared: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    while shared and isinstance(model.get_submodule(".".join(shared)), nn.ModuleList | nn.ModuleDict):
        shared.pop()
    return ".".join(shared)


def _calls_of_trials(model: nn.Module, scopes: set[str], batch: Batch) -> dict[str, tuple[tuple, dict[str, Any]]]:
    """What modules are called with, of some of a batch where a model takes that; those called several times are out."""
    for each in (_first_row(batch), batch):
        # A model may take rows of one length only, or have no rows; what cannot be tried is not folded.
        with contextlib.suppress(Exception):
            return _calls_of(model, scopes, each)
    return {}


def _calls_of(model: nn.Module, scopes: set[str], batch: Batch) -> dict[str, tuple[tuple, dict[str, Any]]]:
    found: dict[str, list] = {}

    def note(name: str):
        return lambda _, given, keywords: found.setdefault(name, []).append((given, dict(keywords)))

    handles = [model.get_submodule(name).register_forward_pre_hook(note(name), with_kwargs=True) for name in scopes]
    try:
        call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return {name: each[0] for name, each in found.items() if len(each) == 1}


def _first_row(batch: Batch) -> Batch:
    """A batch of one row, where that is what the first dimension of all tensors counts; of tokens, only some."""
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim() > 1]
    if len({leaf.shape[0] for leaf in leaves}) != 1:
        return batch
    are_tokens = len({leaf.shape for leaf in leaves}) == 1 and all(
        leaf.dim() == 2 and not leaf.is_floating_point() for leaf in leaves
    )
    cut = (slice(0, 1), slice(0, _TOKENS)) if are_tokens else slice(0, 1)
    return tree_map(lambda leaf: leaf[cut] if isinstance(leaf, torch.Tensor) and leaf.dim() > 1 else leaf, batch)


class _Trial:
    """A part of a model in float64, and what it gives."""

    def __init__(self, model: nn.Module, scope: str, arguments: tuple, keywords: dict[str, Any]):
        self._prefix = f"{scope}." if scope else ""
        self._model, self._scope = model, scope
        self._arguments, self._keywords = _doubled(arguments), _doubled(keywords)
        self._exact: _Made | None = None

    def is_exact(self, fold: Fold, group: Group) -> bool:
        """Whether random factors divide what the group is given, and change nothing else."""
        part = copy.deepcopy(self._model.get_submodule(self._scope)).double()
        inside = Group(tuple(layer.removeprefix(self._prefix) for layer in group.layers), group.rows)
        own = Fold(fold.source.removeprefix(self._prefix), fold.first, fold.places, fold.offset)
        generator = torch.Generator().manual_seed(0)
        factors = torch.rand(fold.count, generator=generator, dtype=torch.float64) * 2 - 1
        # What has no float64, whatever it says about that, cannot be shown to be exact.
        with contextlib.suppress(Exception):
            if self._exact is None:
                self._exact = self._run(part)
            own.apply(part, inside, factors.exp())
            made = self._run(part)
            exact, spread = self._exact, factors.exp()[list(fold.places)]
            return (
                all(_is_divided(layer, made, exact, spread) for layer in inside.layers)
                and len(made.outputs) > 0
                and all(map(_is_near, made.outputs, exact.outputs))
            )
        return False

    def _run(self, part: nn.Module) -> "_Made":
        inputs: dict[str, list[torch.Tensor]] = {}
        linear = [name for name, layer in all_layers(part).items() if not layer.is_stack]
        with contextlib.ExitStack() as exits:
            for name in linear:
                hook = part.get_submodule(name).register_forward_pre_hook(_keeping(inputs, name))
                exits.callback(hook.remove)
            exits.enter_context(_InDouble())
            made = part(*copied(self._arguments), **copied(self._keywords))
        values = made.values() if isinstance(made, Mapping) else made
        return _Made([leaf for leaf in tree_leaves(values) if _is_real(leaf)], inputs)


class _Made(NamedTuple):
    """What a part of a model gave, and what its linear layers were given."""

    outputs: list[torch.Tensor]
    inputs: dict[str, list[torch.Tensor]]


def _keeping(inputs: dict[str, list[torch.Tensor]], name: str) -> Callable[[nn.Module, tuple], None]:
    # What follows may write to it.
    return lambda _, given: inputs.setdefault(name, []).append(given[0].clone())


def _is_divided(layer: str, made: _Made, exact: _Made, factors: torch.Tensor) -> bool:
    """Whether a layer ran, and the source is what its input comes from: that was divided by the factors."""
    inputs = [each.inputs.get(layer, []) for each in (made, exact)]
    if [len(each) for each in inputs] != [1, 1]:
        return False
    (divided,), (given,) = inputs
    return bool(given.any()) and _is_near(divided * factors, given)


def _is_near(made: torch.Tensor, exact: torch.Tensor) -> bool:
    return bool(((made - exact).norm() <= _TOLERANCE * exact.norm()).item())


class _InDouble(TorchFunctionMode):
    """Runs what a module computes in float32, such as the mean of squares of a norm, in float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = torch.Tensor.double if func is torch.Tensor.float else func
        args, kwargs = tree_map(_doubled_dtype, (args, kwargs or {}))
        return func(*args, **kwargs)


def _doubled_dtype(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def _doubled(values: Any) -> Any:
    return tree_map(lambda leaf: leaf.double() if _is_real(leaf) else leaf, values)


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def best_factors(fold: Fold, x: torch.Tensor, weights: Sequence[torch.Tensor], recipe: Recipe) -> torch.Tensor | None:
    """The factors with which a group loses least in a format, by some of its inputs; None if that is without any."""
    weight = torch.cat([each.detach().float() for each in weights])
    sizes = _shared(x.float().square().mean(0), fold), _shared(weight.square().mean(0), fold)
    rows = weight[:: -(-weight.shape[0] // _ROWS)]
    exact = x.float() @ rows.t()
    best: tuple[float, torch.Tensor | None] = float("inf"), None
    for of_input, of_weight in _EXPONENTS:
        factors = sizes[0] ** (of_input / 2) / sizes[1] ** (of_weight / 2)
        factors = (factors / factors.log().mean().exp()).clamp(1 / _LARGEST_FACTOR, _LARGEST_FACTOR)
        spread = factors[list(fold.places)]
        rounded = rounded_input(x.float() / spread, input_scheme(recipe)) @ searched(rows * spread, recipe).t()
        error = float((rounded - exact).double().square().sum())
        if error < best[0]:
            best = error, factors if of_input else None
    return best[1]


def _shared(sizes: torch.Tensor, fold: Fold) -> torch.Tensor:
    """The mean size of the columns of each factor, none of them zero."""
    total = torch.zeros(fold.count).index_add_(0, torch.tensor(fold.places), sizes)
    return (total * fold.count / len(fold.places)).clamp(min=float(sizes.mean()) * 1e-6 + 1e-30)
