"""`steelyard.jax.compile`: a JAX function whose products with parameters run in the formats of a recipe."""

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import jax
import jax.extend.core as jex
import numpy as np
from jax.core import Tracer
from jax.tree_util import tree_flatten_with_path
from torch_mlir import ir

from steelyard import recipes
from steelyard.dialect import make_context, print_module
from steelyard.driver.explanation import Explanation, little_is_quantized
from steelyard.errors import RecipeError, SteelyardError, SteelyardWarning, UnsupportedModelError, shown
from steelyard.files import write_folder
from steelyard.insight.collecting import Collector
from steelyard.insight.outputs import OutputTotal
from steelyard.insight.results import Measurement
from steelyard.ir.nesting import graph_names, nest_modules
from steelyard.jax.arguments import check_flag
from steelyard.jax.compiler.compilation import STAGES, Compilation
from steelyard.jax.compiler.measured_calls import Loss, Measuring, measure_batches, measuring_of, settings
from steelyard.jax.compiler.parameters import Parameter, parameters_of, repeated_name
from steelyard.jax.compiler.program import Program
from steelyard.jax.compiler.state import State
from steelyard.jax.compiler.variables import (
    Updates,
    changed_variables,
    shared_variables,
    values_of,
    with_shared,
    write_back,
)
from steelyard.jax.compiler.weights import Missing, QuantizedWeights
from steelyard.jax.quantizers import RECIPES, has_kernels

_OURS = (str(Path(__file__).parents[1]), str(Path(jax.__file__).parent))
_ALLOWED_EFFECTS = ("Debug", "IO", "OrderedDebug", "OrderedIO", "NamedAxis")


def compile(
    fn: Callable[..., Any],
    recipe: str | recipes.Recipe,
    *,
    overrides: Mapping[str, str | recipes.Recipe | None] | None = None,
    parameters: int | Sequence[int] = 0,
) -> "CompiledFunction":
    """A function like `fn` whose matrix multiplications with parameters run by a recipe, forward and backward.

    It works under jit, grad, vmap, scan, checkpoint and shard_map, and inside of it they do, too. Nothing is compiled
    before the first call or `lower`; each combination of shapes and dtypes is compiled once.

    Args:
        fn: A function of arrays and pytrees of arrays, such as the `apply` of a flax.linen module or a function that
            calls a flax.nnx module which it is given.
        recipe: The name of a recipe, or a recipe object.
        overrides: Patterns of layer names, and for each another recipe, or None for high precision. The first pattern
            that matches a layer decides. Layers are named after the paths of their parameters: `blocks.0.mlp.up`.
        parameters: The argument of `fn` that holds parameters, by its number, or several.
    """
    if not callable(fn):
        raise UnsupportedModelError(f"steelyard.jax.compile takes a function, got {type(fn).__name__}")
    _refuse_modules(fn)
    numbers: tuple[Any, ...] = tuple(parameters) if isinstance(parameters, tuple | list) else (parameters,)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise RecipeError(f"parameters must be numbers of arguments, got {shown(parameters)}")
    is_mapping = overrides is None or isinstance(overrides, Mapping)
    if not is_mapping or not all(isinstance(pattern, str) for pattern in overrides or ()):
        raise RecipeError(f"overrides must map patterns of layer names to recipes, got {shown(overrides)}")
    chosen = recipes.Overrides({k: None if v is None else _checked(v) for k, v in (overrides or {}).items()})
    return CompiledFunction(fn, _checked(recipe), chosen, tuple(dict.fromkeys(numbers)))


def _refuse_modules(fn: Any) -> None:
    """Refuse a flax module: what it holds would be constants of the function, and not its parameters."""
    modules = [base.__module__ for base in type(fn).__mro__ if base.__name__ == "Module"]
    rooms = {name.split(".")[1] for name in modules if name.startswith("flax.")}
    name = type(fn).__name__
    if "nnx" in rooms:
        remedy = "compile(lambda model, x: model(x), ...), and call the result with the module"
    elif "linen" in rooms:
        remedy = "compile(module.apply, ...), and call the result with the variables"
    else:
        return
    raise UnsupportedModelError(f"a function must take its parameters as an argument, got the module {name}; {remedy}")


def _checked(recipe: str | recipes.Recipe) -> recipes.Recipe:
    """The recipe, if JAX has kernels for its formats."""
    found = recipes.get(recipe)
    if isinstance(found, recipes.CustomRecipe):
        raise RecipeError("a recipe for JAX must have built-in formats, got a CustomRecipe")
    schemes = [scheme for role in recipes.ROLES for scheme in found.schemes(recipes.Role(role, "")) if scheme]
    for scheme in schemes:
        if not has_kernels(scheme):
            raise RecipeError(
                f"recipe {found.name} must have formats that JAX has kernels for, got {scheme.element} in "
                f"{scheme.block} with {scheme.source} {scheme.scale} scales; use one of {', '.join(RECIPES)}"
            )
    return found


def _checked_state(state: Any) -> State:
    if state is None:
        return {}
    if not isinstance(state, Mapping):
        raise RecipeError(f"state must be what init_state returns, or its gradient, got {type(state).__name__}")
    return dict(state)


@dataclass(frozen=True)
class _Signature:
    """What makes calls the same to JAX: shapes, dtypes, whatever is no array, and how JAX is set up."""

    tree: Any
    avals: tuple[Any, ...]
    static: tuple[tuple[int, Any], ...]
    settings: tuple[Any, ...]
    shared: tuple[tuple[int, int], ...]
    """Which variables of flax.nnx are the same."""

    def starts_with(self, tree: Any, avals: tuple[Any, ...], static: tuple[tuple[int, Any], ...]) -> bool:
        """Whether the first argument is such a tree."""
        arguments, _ = jax.tree.unflatten(self.tree, range(self.tree.num_leaves))
        if not arguments or jax.tree.structure(arguments[0]) != tree or self.avals[: len(avals)] != avals:
            return False
        return tuple(each for each in self.static if each[0] < tree.num_leaves) == static


@dataclass(frozen=True)
class _Traced:
    """The program of a signature, and the tree of its results and of the variables that it changes."""

    program: Program
    out_tree: Any
    closes_over_tracers: bool

    def unflatten(self, flat: Sequence[Any]) -> tuple[Any, Updates]:
        """The results of a call, and what it changes."""
        return jax.tree.unflatten(self.out_tree, flat)


class CompiledFunction:
    """A function whose products run by a recipe. Call it as the function that it was made of.

    Recipes with state (delayed scales, stochastic rounding of gradients) take it as `state=`, from `init_state`. The
    gradient with respect to the state is the state of the next step.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        recipe: recipes.Recipe,
        overrides: recipes.Overrides,
        parameters: tuple[int, ...],
        collector: Collector | None = None,
    ):
        self.fn, self.recipe, self.overrides = fn, recipe, overrides
        self.parameters, self._collector = parameters, collector
        """The numbers of the arguments that hold parameters, and what takes the numbers of a function that measures."""
        self._traced: dict[_Signature, _Traced] = {}
        self._warned, self._layers = False, set[str]()
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.__doc__ = fn.__doc__

    def __call__(self, *args: Any, state: State | None = None, **kwargs: Any) -> Any:
        state = _checked_state(state)
        if any(isinstance(value, QuantizedWeights) for value in kwargs.values()):
            raise SteelyardError("quantized weights must be a positional argument, got a keyword; pass them first")
        weights = next(
            (args[i] for i in self.parameters if i < len(args) if isinstance(args[i], QuantizedWeights)), None
        )
        measuring = measuring_of(self)
        if weights is not None and measuring is not None:
            raise SteelyardError("calls that are measured must be given parameters, got weights that are quantized")
        if weights is not None:
            return self._serve(weights, args, kwargs, state)
        if measuring is not None:
            return measuring.run(args, kwargs, state)
        traced, leaves = self._trace(args, kwargs)
        results, updates = traced.unflatten(traced.program(leaves, state))
        self._warn(traced.program)
        write_back(updates, (args, kwargs))
        return results

    def quantize(self, parameters: Any, *args: Any, state: State | None = None, **kwargs: Any) -> QuantizedWeights:
        """Quantize parameters once, for calls without gradients: `fast(weights, x)`.

        The other arguments are those of a call; without them it is for the calls that were compiled already. Recipes
        with delayed scales need their state.
        """
        if self.parameters != (0,):
            raise SteelyardError("only a function whose parameters are its first argument takes quantized weights")
        leaves, tree = jax.tree.flatten(parameters)
        arrays, static = _split(leaves)
        avals = tuple(map(_aval, arrays))
        if args or kwargs:
            self._trace((parameters, *args), kwargs)
        programs = [
            traced.program for signature, traced in self._traced.items() if signature.starts_with(tree, avals, static)
        ]
        if not programs:
            raise SteelyardError(
                "nothing is compiled yet for parameters like these; pass the other arguments of a call, too"
            )
        weights: dict[str, list[Any]] = {}
        read: set[int] = set()
        for program in programs:
            whole = [*arrays, *[None] * (len(program.avals) - len(arrays))]
            made, numbers = program.quantize(whole, _checked_state(state))
            weights |= made
            read |= numbers
        kept = {i: leaf for i, leaf in enumerate(arrays) if i in read}
        return QuantizedWeights(kept, weights, tree, avals, static, shared_variables(((parameters,), {}), leaves))

    def _serve(self, weights: QuantizedWeights, args: tuple[Any, ...], kwargs: dict[str, Any], state: State) -> Any:
        """The result for quantized weights in the place of the first argument."""
        missing = weights.parameters()
        traced, leaves = self._trace((missing, *args[1:]), kwargs, weights.shared)
        given = [weights.kept.get(i) if isinstance(leaf, Missing) else leaf for i, leaf in enumerate(leaves)]
        self._warn(traced.program)
        results, updates = traced.unflatten(traced.program.serve(given, weights.weights, state))
        if updates:
            raise SteelyardError(
                f"a call with quantized weights must not change variables, got changes of {', '.join(updates)}; "
                "quantize the model as it is for inference, after model.eval(), or pass the model itself"
            )
        return results

    def init_state(self, *args: Any, key: Any = None, **kwargs: Any) -> State:
        """The state before the first step, for a call with these arguments; `key` seeds stochastic rounding."""
        return self._trace(args, kwargs)[0].program.state(key)

    def lower(self, *args: Any, training: bool = True, **kwargs: Any) -> None:
        """Compile for arguments like these, without running: with gradients or, if `training` is False, without.

        Shapes and dtypes are enough (`jax.ShapeDtypeStruct`).
        """
        check_flag(training, "training")
        program = self._trace(args, kwargs)[0].program
        _ = program.training if training else program.inference
        self._warn(program)

    def ir(self, stage: str) -> str:
        """The IR of a stage: `traced`, `raised`, `quantized`, `fused` or `partitioned`."""
        if not isinstance(stage, str) or stage not in STAGES:
            raise SteelyardError(f"stage must be one of {', '.join(STAGES)}, got {shown(stage)}")
        modules = [compilation.module(stage) for compilation in self._compilations()]
        if len(modules) == 1:
            return print_module(modules[0].operation)
        context = make_context()
        context.allow_unregistered_dialects = True
        again = [ir.Module.parse(str(module), context) for module in modules]
        return print_module(nest_modules(dict(zip(graph_names(), again, strict=False)), context).operation)

    def ir_dump(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the IR after every pass into numbered files; returns their paths."""
        if not isinstance(folder, str | os.PathLike):
            raise SteelyardError(f"folder must be the path of a folder, got {shown(folder)}")
        texts: dict[str, str] = {}
        for graph, compilation in zip(graph_names(), self._compilations(), strict=False):
            for number, (name, text) in enumerate(compilation.replay()):
                texts[f"{graph}_{number:02}_{name}.mlir"] = text
        return write_folder(Path(folder), texts)

    def explain(self) -> Explanation:
        """One row for each matrix product of the compiled programs, with its formats or why it has none."""
        return Explanation([row for compilation in self._compilations() for row in compilation.rows])

    @overload
    def measure(
        self, batches: Iterable[Any], *, loss: Loss | None = ..., state: State | None = ..., logits: bool = ...
    ) -> Measurement: ...
    @overload
    def measure(self, *, output: bool = ..., logits: bool = ...) -> Measuring: ...
    def measure(
        self,
        batches: Iterable[Any] | None = None,
        *,
        loss: Loss | None = None,
        state: State | None = None,
        logits: bool = False,
        output: bool = False,
    ) -> Measurement | Measuring:
        """Measure what each GEMM loses: of each quantize, of each product, and of the whole function.

        With `batches`, calls the function with each, quantized and as it is. Everything else, state included, stays as
        it was. Without, returns a context manager in which all calls are measured, with their backward, and whose
        `result` is the `Measurement` so far. Functions under jit that call this one are traced again there:

            with fast.measure() as measuring:
                params = step(params, x)
            measuring.result.rows

        Args:
            batches: Tuples of the arguments of a call.
            loss: From what the function returns, and the batch, to the loss; then gradients are measured, too: those of
                each GEMM, and of each parameter beside what they are without a recipe.
            state: With batches: what `init_state` returns, for recipes with state.
            logits: Whether the result is logits, so that distributions are compared.
            output: In the context: also run the function as it is, so that the result has the error of the output.
        """
        check_flag(logits, "logits")
        check_flag(output, "output")
        collector = Collector()
        twin = CompiledFunction(self.fn, self.recipe, self.overrides, self.parameters, collector)
        if batches is not None:
            return measure_batches(twin, collector, batches, loss=loss, state=state, logits=logits)
        if loss is not None or state is not None:
            raise RecipeError("loss and state are for batches; calls in the context have their own")
        return Measuring(self, twin, collector, OutputTotal() if output else None, logits=logits)

    def _compilations(self) -> list[Compilation]:
        """The training program of each signature that has one, and the inference program of the others."""
        programs = [traced.program for traced in self._traced.values()]
        if not programs:
            raise SteelyardError("nothing is compiled yet; call the function, or lower(...) with its arguments")
        return [program.training if program.is_trained else program.inference for program in programs]

    def _trace(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], shared: tuple[tuple[int, int], ...] | None = None
    ) -> tuple[_Traced, list[Any]]:
        """The program for arguments, and the leaves that it takes."""
        whole, tree = jax.tree.flatten((args, kwargs))
        leaves, static = _split(whole)
        avals = tuple(map(_aval, leaves))
        shared = shared_variables((args, kwargs), leaves) if shared is None else shared
        signature = _Signature(tree, avals, static, settings(), shared)
        _check_hashable(signature)
        traced, closed_over = self._traced.get(signature), []
        if traced is None or traced.closes_over_tracers:
            pairs, _ = tree_flatten_with_path((args, kwargs))
            paths = [path for path, leaf in pairs if _is_traced(leaf)]
            traced, closed_over = self._make(signature, paths, leaves)
            self._traced[signature] = traced
        return traced, [*leaves, *closed_over]

    def _make(
        self, signature: _Signature, paths: Sequence[tuple[Any, ...]], leaves: Sequence[Any]
    ) -> tuple[_Traced, list[Any]]:
        """The program of a signature, and the values of an outer trace that the function closes over."""
        trees: list[Any] = []

        def flat(*values: Any) -> list[Any]:
            given, fixed = iter(values), dict(signature.static)
            count = signature.tree.num_leaves
            whole = [fixed[i] if i in fixed else next(given) for i in range(count)]
            arguments = with_shared(jax.tree.unflatten(signature.tree, whole), signature.shared)
            args, kwargs = arguments
            before = values_of(arguments)
            results = self.fn(*args, **kwargs)
            outs, tree = jax.tree.flatten((results, changed_variables(before, arguments)))
            trees.append(tree)
            return outs

        closed, closed_over = _with_tracers_as_arguments(jax.make_jaxpr(flat)(*signature.avals))
        _check_effects(closed)
        parameters = [*self._named(paths, leaves), *[None] * len(closed_over)]
        program = Program(closed, parameters, self.recipe, self.overrides, self._collector)
        return _Traced(program, trees[-1], bool(closed_over)), closed_over

    def _named(self, paths: Sequence[tuple[Any, ...]], leaves: Sequence[Any]) -> list[Parameter | None]:
        """The parameters among the leaves."""
        named: list[Parameter | None] = [None] * len(leaves)
        places = {argument: self._places(argument, paths) for argument in self.parameters}
        for own in (places, None):
            for argument, found in places.items():
                names = [paths[i][2:] for i in found]
                prefix = self._argument_name(argument)
                made = parameters_of(names, [leaves[i] for i in found], prefix, is_prefix=own is None)
                for place, parameter in zip(found, made, strict=True):
                    named[place] = parameter
            # Arguments with equal names are told apart by their own.
            repeated = repeated_name(named)
            if repeated is None:
                return named
        raise UnsupportedModelError(
            f"parameters must have names of their own, got two of the name {repeated!r}; rename one of them"
        )

    def _places(self, argument: int, paths: Sequence[tuple[Any, ...]]) -> list[int]:
        """The leaves of an argument that holds parameters, which is given by its place or by its name."""
        name = self._argument_name(argument)
        # The first key says whether it is a positional argument, the second which.
        found = [i for i, path in enumerate(paths) if _key_of(path) in ((0, argument), (1, name))]
        if not found:
            raise RecipeError(
                f"parameters must be numbers of arguments that hold arrays, got {argument}, for which this call has "
                f"none; pass parameters={argument} as a positional argument, or name another"
            )
        return found

    def _argument_name(self, number: int) -> str:
        try:
            return list(inspect.signature(self.fn).parameters)[number]
        except (TypeError, ValueError, IndexError):
            return f"argument{number}"

    def _warn(self, program: Program) -> None:
        """Refuse overrides that match nothing, and warn once if little of the function is quantized."""
        if program.checked is program.is_trained:
            return
        compilation = program.training if program.is_trained else program.inference
        program.checked = program.is_trained
        self._check_overrides(compilation)
        message = None if self._warned else little_is_quantized(compilation.rows)
        if message is None:
            return
        self._warned = True
        frame, level = sys._getframe(1), 2
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
            frame, level = frame.f_back, level + 1
        warnings.warn(message, SteelyardWarning, stacklevel=level)

    def _check_overrides(self, compilation: Compilation) -> None:
        """Refuse a pattern that matches no layer of any call so far."""
        self._layers |= compilation.layers
        unmatched = self.overrides.unmatched(self._layers)
        if unmatched:
            known = ", ".join(sorted(filter(None, self._layers))) or "none"
            raise RecipeError(
                f"override pattern {sorted(unmatched)[0]!r} matches no layer; the layers with GEMMs: {known}"
            )


def _key_of(path: tuple[Any, ...]) -> tuple[int, Any]:
    """Whether a leaf is in positional arguments or in keywords, and in which."""
    return path[0].idx, getattr(path[1], "idx", getattr(path[1], "key", None))


def _split(leaves: Sequence[Any]) -> tuple[list[Any], tuple[tuple[int, Any], ...]]:
    """The leaves that JAX traces, and the others with their numbers."""
    static = tuple((i, leaf) for i, leaf in enumerate(leaves) if not _is_traced(leaf))
    return ([leaf for leaf in leaves if _is_traced(leaf)] if static else list(leaves)), static


def _aval(leaf: Any) -> Any:
    """The shape and dtype of a leaf."""
    if isinstance(leaf, Missing):
        return leaf.aval
    try:
        return jax.typeof(leaf)
    except (TypeError, OverflowError):
        found = getattr(leaf, "dtype", None) or shown(leaf)
        raise UnsupportedModelError(f"arrays and numbers must have a dtype that JAX knows, got {found}") from None


def _check_hashable(signature: _Signature) -> None:
    """Refuse what is neither an array nor can be looked up."""
    for _, value in signature.static:
        try:
            hash(value)
        except Exception:
            raise UnsupportedModelError(
                f"arguments that are no arrays must be hashable, got {shown(value)} of type {type(value).__name__}; "
                "pass what it is made of, or let the function close over it"
            ) from None


def _is_traced(leaf: Any) -> bool:
    """Whether JAX traces a leaf: an array or a number, and not a flag, a string or a function."""
    if isinstance(leaf, bool):
        return False
    return isinstance(
        leaf, jax.Array | np.ndarray | np.generic | int | float | complex | Missing | jax.ShapeDtypeStruct
    )


def _with_tracers_as_arguments(closed: Any) -> tuple[Any, list[Any]]:
    """A jaxpr that takes what belongs to an outer trace as its last arguments, and their values.

    They are other values in another call, and have gradients.
    """
    pairs = list(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    lifted = [(variable, value) for variable, value in pairs if isinstance(value, Tracer)]
    if not lifted:
        return closed, []
    kept = [(variable, value) for variable, value in pairs if not isinstance(value, Tracer)]
    invars = [*closed.jaxpr.invars, *(variable for variable, _ in lifted)]
    inner = closed.jaxpr
    info = inner.debug_info._replace(arg_names=None)
    jaxpr = inner.replace(constvars=[variable for variable, _ in kept], invars=invars, debug_info=info)
    return jex.ClosedJaxpr(jaxpr, [value for _, value in kept]), [value for _, value in lifted]


def _check_effects(closed: Any) -> None:
    """Refuse a function that changes something other than what it returns."""
    for effect in closed.effects:
        name = type(effect).__name__.removesuffix("Effect")
        if not str(effect).startswith(_ALLOWED_EFFECTS) and name not in _ALLOWED_EFFECTS:
            raise UnsupportedModelError(
                "the function must be pure but for collectives and debug and io callbacks, got the effect "
                f"{effect} ({name}); pass what it changes as an argument, and return it"
            )
