"""The torch.compile backend: each graph of ATen ops that AOTAutograd hands over becomes a program."""

import functools
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, cast

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis, SkipFrame, exceptions_allowed_to_be_fallback
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from steelyard.dialect import make_context
from steelyard.driver import progress
from steelyard.driver.blocks import Blocks, find_blocks, modules_outside
from steelyard.driver.cache_scales import CacheScales
from steelyard.driver.captured import CapturedGraph, Stored
from steelyard.driver.compilation import Compilation
from steelyard.driver.explanation import Row
from steelyard.driver.fast_path import has_fast_path, without_fast_path
from steelyard.driver.frames import Captured
from steelyard.driver.gathered_parameters import is_gathered
from steelyard.driver.inference import Run, without_wrapper, written_inputs
from steelyard.driver.layer_names import layer_names
from steelyard.driver.outside import Outside
from steelyard.driver.profiles import Profile
from steelyard.driver.quantized_inputs import as_plain, check_frozen, stored_schemes
from steelyard.driver.settings import AUTO, Settings, make_settings
from steelyard.driver.stored_weights import replace_parameter, store_weights
from steelyard.driver.training import JointGraph, JointPrograms, make_thin_graphs, run_graph
from steelyard.driver.uncompiled import GraphsOfTorch
from steelyard.errors import RecipeError, SteelyardError, UnsupportedModelError, UnsupportedOpError
from steelyard.forks import make_lock
from steelyard.frontend.graph_variants import Sizes, has_unknown_sizes, with_sizes, without_results
from steelyard.frontend.grouped_mm import capture_experts
from steelyard.frontend.importer import import_graph, lift_constants
from steelyard.ir.functions import functions_of
from steelyard.runtime.cuda.devices import device_among, target_among
from steelyard.runtime.program import Program
from steelyard.runtime.results import ResultMemory
from steelyard.runtime.state import State
from steelyard.runtime.weights import Weights
from steelyard.targets import CPU, CUDA, check_target, spelled
from steelyard.tensor.quantized_tensor import QuantizedTensor


class Backend:
    """Compiles the graphs of one net. `compilations` has one entry per graph, in the order of compilation.

    What it hands to torch, torch keeps until the net is freed. So none of it may keep the backend, which keeps the net:
    it gets `shared` instead.
    """

    def __init__(
        self,
        settings: Settings,
        root: torch.nn.Module | None = None,
        state: State | None = None,
        storable: frozenset[str] = frozenset(),
    ):
        self.settings = settings
        self.lock = make_lock()
        """Held while something is compiled or replaced."""
        self.state = State() if state is None else state
        """The net's state by name, shared by all its programs."""
        self.state.has_net = root is not None
        self.state.static_scale = settings.static_scale
        self.root = root
        self.shared = self if root is None else cast(Backend, weakref.proxy(self))
        self.compilations: list[Compilation] = []
        self.graphs = 0
        """How many graphs were compiled so far, those that are outdated by now included."""
        self.of_torch = GraphsOfTorch()
        """The graphs that cannot be compiled."""
        self.names_by_id = functools.partial(_names_by_id, _weakly(root))
        """From the ids of parameters to their names."""
        self.weights = Weights(functools.partial(is_gathered, _weakly(root)), _quantizing)
        self.weights.holds_packed = settings.weights != "quantized"
        self.kept_weights: dict[str, str] = {}
        """Parameters that stay in high precision although `weights` is `quantized`, and why."""
        self.storable = storable
        """Parameters that may be replaced by quantized ones although they require a gradient."""
        self._settled = 0
        """How many of the compilations have been searched for weights to store."""
        self._outdated: list[Compilation] = []
        """Compilations whose parameters have been replaced."""
        self.outside = Outside()
        """What ran between the graphs."""
        self.has_warned = False
        """Whether a warning said that little of the net is quantized."""
        self.is_lowering = False
        """While this is set, calls only compile; if a program cannot run here, torch computes its results."""
        self.profiled: Profile | None = None
        """The last call that was profiled."""
        self.observing: Any = None
        """What runs the calls of the net, while somebody measures it."""
        self.results = ResultMemory()
        """Memory of what blocks return, for the calls of the net that are cut into them."""
        self.block_captures: dict[Hashable, Captured] = {}
        """What blocks that are alike share."""
        self._part_names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()

    @functools.cached_property
    def has_fast_path(self) -> bool:
        """Whether the net has layers that torch may fuse."""
        # Not when a net is made: in a copy, its model may have no modules yet.
        return self.root is not None and has_fast_path(self.root)

    @functools.cached_property
    def cache_scales(self) -> CacheScales:
        """The static scales of the net's KV caches."""
        assert self.root is not None, "only a net is given caches"
        return CacheScales(self.root, self.settings.kv_scales, self.state)

    @functools.cached_property
    def blocks(self) -> Blocks | None:
        """The repeated blocks of the net, None if it is captured as a whole."""
        if self.root is None:
            return None
        return find_blocks(self.root._steelyard.model, self.settings.blocks, self.settings.overrides)  # pyright: ignore

    def capture(self, *, is_settled: bool) -> AbstractContextManager:
        """The context of a call; products outside of programs are looked for until a net has settled."""
        keeps_results = self.blocks is not None and not torch.is_grad_enabled()
        if is_settled and not self.has_fast_path and not keeps_results:
            return self.settings.capture()
        contexts = ExitStack()
        contexts.enter_context(self.settings.capture())
        if keeps_results:
            contexts.enter_context(self.results.call())
        if self.has_fast_path:
            contexts.enter_context(without_fast_path())
        if not is_settled:
            contexts.enter_context(progress.call())
            contexts.enter_context(self._record_outside())
        return contexts

    def _record_outside(self) -> AbstractContextManager:
        if self.blocks is None:
            return self.outside.record(self._module_names)
        runs, is_own_choice = self.state.runs, self.settings.blocks == AUTO
        return self.outside.record(
            self._module_names, self.blocks.around, lambda: is_own_choice and self.state.runs == runs
        )

    def seconds_to_capture(self) -> float:
        """How long it would take to capture all blocks, one by one, by what the first ones took."""
        return sum(
            captured.frames.seconds_each() * captured.frames.sharers for captured in self.block_captures.values()
        )

    def capture_as_a_whole(self) -> None:
        """Cut the net into blocks no longer."""
        self.blocks = None

    def name_part(self, part: torch.nn.Module, name: str) -> None:
        """Record the name of the root's submodule that `part` is the compiled form of."""
        self._part_names[part] = name

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Sequence, *, caller: str = "") -> Callable:
        """Compile a graph; `caller` is the name of the module whose call it belongs to."""
        capture_experts(graph_module.graph, example_inputs)
        graph_module.recompile()
        parameters = self._parameter_names(graph_module, example_inputs)
        check_frozen(parameters, example_inputs)
        stored = stored_schemes(example_inputs)
        settings = self._settings_for(example_inputs)
        backend = self.shared
        apart = next((type(value).__name__ for value in example_inputs if is_traceable_wrapper_subclass(value)), None)

        direct: list[Callable | None] = []

        def compile_inference(aten: torch.fx.GraphModule, inputs: Sequence) -> Callable:
            _check_count(parameters, inputs, apart)
            run = backend._compile(aten, settings, parameters, stored, caller)
            direct.append(without_wrapper(run, len(parameters)))
            return _boxed(run)

        training = _Training(backend, settings, parameters, stored, apart, caller)
        capture = aot_autograd(
            fw_compiler=training.compile_forward,
            bw_compiler=training.compile_backward,
            inference_compiler=compile_inference,
            partition_fn=training.partition,
        )
        try:
            with progress.doing(lambda: f"tracing the ops of {caller or 'the model'}"):
                captured = capture(graph_module, as_plain(example_inputs))
            return next(filter(None, direct), captured)
        except (RestartAnalysis, SkipFrame, *exceptions_allowed_to_be_fallback):
            # No failures: torch is told to capture the frame in another way, or breaks the graph before the op.
            raise
        except Exception as error:
            if isinstance(error, SteelyardError) and not isinstance(error, UnsupportedOpError):
                raise
            layers = layer_names(graph_module.graph, self._module_names(), parameters, caller)
            with self.lock:
                self.of_torch.add(graph_module, error, layers)
                self.graphs += 1
            # A function of this module, by which rows tell what runs in graphs from what runs between them.
            return lambda *values: graph_module.forward(*values)

    def _settings_for(self, inputs: Sequence) -> Settings:
        """The settings, with the target of the device that these inputs are on."""
        if self.settings.target == CPU:
            return self.settings
        device_among(inputs)
        if self.settings.target != CUDA:
            return self.settings
        return replace(self.settings, target=spelled(target_among(inputs)))

    def runs_by_torch(self, program: Program, values: Sequence) -> bool:
        """Whether a call that only compiles must leave the results to torch."""
        return self.is_lowering and program.devices is not None and device_among(values) is None

    def store_weights(self) -> None:
        """With `weights="quantized"`, replace the parameters that programs quantize by quantized ones."""
        if self.settings.weights != "quantized" or self.root is None or self._settled == len(self.compilations):
            return
        if self.settings.target != CPU and device_among(self.root.parameters()) is None:
            return  # a model on the CPU that is only looked at
        with self.lock:
            programs = {id(c): c.program for c in self.compilations if c.program is not None}
            outside = {} if self.blocks is None else modules_outside(self.root, self.blocks)
            replaced, self.kept_weights = store_weights(
                self.root, programs.values(), self.state, self.storable, outside
            )
            self._outdated += [
                compilation
                for compilation in self.compilations
                if any(weight.parameter in replaced for weight in programs[id(compilation)].weight_arguments)
            ]
            self._settled = len(self.compilations)
            self.weights.holds_packed = True

    def take_weights(self, tensors: Mapping[str, QuantizedTensor]) -> None:
        """With `weights="quantized"`, make quantized tensors the parameters that a call would replace by such."""
        if self.settings.weights != "quantized" or self.root is None:
            return
        parameters = dict(self.root.named_parameters(remove_duplicate=False))
        for name, tensor in tensors.items():
            parameter = parameters.get(name)
            if parameter is None or isinstance(parameter, QuantizedTensor) or parameter.shape != tensor.shape:
                continue
            if not parameter.requires_grad or name in self.storable:
                replace_parameter(self.root, name, tensor.detach().clone())

    @property
    def rows(self) -> list[Row]:
        """What became of each GEMM of every graph."""
        compiled = [row for compilation in self.compilations for row in compilation.rows]
        return [*compiled, *self.of_torch.rows, *self.outside.rows]

    @property
    def is_outdated(self) -> bool:
        """Whether graphs must be compiled again, because parameters have been replaced."""
        return bool(self._outdated)

    def _add(self, compilation: Compilation) -> None:
        with self.lock:
            kept = [known for known in self.compilations if known not in self._outdated]
            self.compilations[:] = [*kept, compilation]
            self._outdated.clear()
            self.graphs += 1
            self._settled = 0

    def capture_joint(
        self, joint: JointGraph, settings: Settings, parameters: Sequence[str | None], stored: Stored, caller: str
    ) -> CapturedGraph:
        """The programs of a forward and its backward."""
        self._check_trained(parameters)
        unnamed = [None for _ in (*joint.constants, *joint.tangents)]
        joint.drop_missing_gradients()
        backend = self.shared

        def build(layers: Mapping[torch.fx.Node, str], parameters: Sequence[str | None], stored: Stored) -> Compilation:
            compilation = Compilation(settings, backend.state, backend.weights)
            known = [*parameters, *unnamed]
            context = make_context()
            module = import_graph(joint.graph, context, name="joint", layers=layers, parameters=known, stored=stored)
            with context:
                joint.mark(functions_of(module.operation)[0], parameters)
            compilation.run(module)
            return compilation

        layers = layer_names(joint.graph, self._module_names(), [*parameters, *unnamed], caller)
        return CapturedGraph(layers, parameters, stored, build, lambda made: backend._add(made), self.names_by_id)

    def _check_trained(self, parameters: Sequence[str | None]) -> None:
        """Refuse gradients of parameters that are to be replaced by their codes."""
        if not self.storable:
            return
        assert self.root is not None
        known = dict(self.root.named_parameters(remove_duplicate=False))
        trained = [name for name in self.storable.intersection(filter(None, parameters)) if known[name].requires_grad]
        if trained:
            raise UnsupportedModelError(
                f'a net with weights="quantized" trains only what stays beside frozen weights, and this call would '
                f"record gradients of {min(trained)}; call it under torch.no_grad(), freeze what is not trained by "
                'requires_grad_(False) before steelyard.compile, or compile with weights="cached"'
            )

    def _compile(
        self,
        aten: torch.fx.GraphModule,
        settings: Settings,
        parameters: Sequence[str | None],
        stored: Stored,
        caller: str,
    ) -> Run:
        written = written_inputs(len(parameters))
        constants = tuple(lift_constants(aten))
        parameters = [*parameters, *(None for _ in constants)]
        stored = (*stored, *((None, None) for _ in constants))
        backend = self.shared

        def build(
            layers: Mapping[torch.fx.Node, str],
            parameters: Sequence[str | None],
            stored: Stored,
            unread: Collection[int] = (),
            sizes: Sizes | None = None,
        ) -> Compilation:
            compilation = Compilation(settings, backend.state, backend.weights)
            graph, layers = without_results(*with_sizes(aten.graph, layers, sizes), unread)
            known = {"layers": layers, "parameters": parameters, "stored": stored, "written": written or ()}
            module = import_graph(graph, make_context(), name="forward", **known)
            compilation.run(module)
            return compilation

        layers = layer_names(aten.graph, self._module_names(), parameters, caller)
        graph = CapturedGraph(
            layers,
            parameters,
            stored,
            build,
            lambda made: backend._add(made),
            self.names_by_id,
            constants,
            written,
            has_unknown_sizes=has_unknown_sizes(aten.graph),
        )
        if settings.target == CPU:
            return graph

        def run(values: tuple) -> tuple:
            values = (*values, *constants)
            program = graph.find(values)
            return run_graph(aten, values) if backend.runs_by_torch(program, values) else program(*values)

        return run

    def _module_names(self) -> dict[int, str]:
        if self.root is None:
            return {}
        names = {id(module): name for name, module in self.root.named_modules(remove_duplicate=False)}
        return names | {id(part): name for part, name in self._part_names.items()}

    def _parameter_names(self, graph_module: torch.fx.GraphModule, inputs: Sequence) -> list[str | None]:
        known = self.names_by_id()
        placeholders = [node.name for node in graph_module.graph.nodes if node.op == "placeholder"]
        return [
            known.get(id(value), placeholder if isinstance(value, torch.nn.Parameter) else None)
            for placeholder, value in zip(placeholders, inputs, strict=True)
        ]


def _quantizing(done: int) -> AbstractContextManager:
    """The context in which a weight is quantized for the first time, after so many others."""
    return progress.doing(lambda: f"quantizing weights, {done} done")


def _weakly(root: torch.nn.Module | None) -> Callable[[], torch.nn.Module | None]:
    return (lambda: None) if root is None else weakref.ref(root)


def _names_by_id(root: Callable[[], torch.nn.Module | None]) -> dict[int, str]:
    """The names of parameters; none when the net is no more, as in a backward after its last use."""
    net = root()
    return {} if net is None else {id(p): name for name, p in net.named_parameters(remove_duplicate=False)}


class _Training:
    """The three callbacks by which AOTAutograd compiles a graph with gradients."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        parameters: Sequence[str | None],
        stored: Stored,
        apart: str | None,
        caller: str,
    ):
        self._backend = backend
        self._settings = settings
        self._parameters = parameters
        self._stored = stored
        self._apart = apart
        self._caller = caller
        self._run: JointPrograms | None = None

    def partition(self, module: torch.fx.GraphModule, _, *, num_fwd_outputs: int, **__) -> tuple:
        """Compile the joint graph."""
        joint = JointGraph(module, num_fwd_outputs)
        _check_count(self._parameters, joint.primals, self._apart)
        backend = self._backend
        captured = backend.capture_joint(joint, self._settings, self._parameters, self._stored, self._caller)
        self._run = JointPrograms(joint, captured, lambda *call: backend.runs_by_torch(*call))
        return make_thin_graphs(joint, captured.first)

    def compile_forward(self, *_) -> Callable:
        """What runs instead of the forward graph."""
        assert self._run is not None
        return _boxed(self._run.forward)

    def compile_backward(self, *_) -> Callable:
        """What runs instead of the backward graph."""
        assert self._run is not None
        return _emptying(self._run.backward)


def _check_count(parameters: Sequence[str | None], inputs: Sequence, apart: str | None) -> None:
    """Refuse a graph with other inputs than it was given: which of them are parameters cannot be told then.

    `apart` is the class of an input that torch takes apart, if there is one.
    """
    if len(parameters) == len(inputs):
        return
    if apart is not None:
        raise UnsupportedModelError(
            f"the arguments and parameters of a net must be plain tensors, got a {apart}, which torch takes apart; "
            "pad nested tensors, and unwrap others"
        )
    raise UnsupportedModelError(
        f"torch changed the inputs of a graph from {len(parameters)} to {len(inputs)}, so that its parameters cannot "
        "be identified; please report the model"
    )


def _boxed(run: Callable[[tuple], tuple]) -> Callable[[list], tuple]:
    """A function in torch's boxed calling convention: it takes a list, and empties it."""

    def call(arguments: list) -> tuple:
        values = tuple(arguments)
        arguments.clear()
        return run(values)

    call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return call


def _emptying(run: Callable[[list], tuple]) -> Callable[[list], tuple]:
    """The same for a function that empties the list itself: its inputs are freed at their last use."""

    def call(arguments: list) -> tuple:
        return run(arguments)

    call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return call


def steelyard(graph_module: torch.fx.GraphModule, example_inputs: Sequence, *, options: dict | None = None) -> Callable:
    """`torch.compile(model, backend="steelyard", options={"recipe": "mxfp8", "overrides": {...}})`."""
    options = dict(options or {})
    if "recipe" not in options:
        raise RecipeError('backend "steelyard" needs a recipe, as in options={"recipe": "mxfp8"}')
    unknown = sorted(options.keys() - {"recipe", *_OPTIONS})
    if unknown:
        known = ", ".join(["recipe", *_OPTIONS])
        raise RecipeError(f'backend "steelyard" has no option {unknown[0]!r}; its options: {known}')
    check_target(options.get("target", CPU))
    return Backend(make_settings(**options))(graph_module, example_inputs)


# `attention` needs a context around each call, which only `steelyard.compile` can provide.
_OPTIONS = ("overrides", "save", "check_finite", "target")
