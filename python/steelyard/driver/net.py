"""`steelyard.compile`: a module whose calls run the compiled program."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.utils.checkpoint import _StopRecomputationError

from steelyard import recipes
from steelyard.driver import inspection
from steelyard.driver.backend import Backend
from steelyard.driver.blocks import find_blocks
from steelyard.driver.cache_scales import number_layers
from steelyard.driver.checkpointing import is_in_checkpoint
from steelyard.driver.decoding import current_decoding, make_generate
from steelyard.driver.failures import CAPTURE_ERRORS, translate
from steelyard.driver.forward import (
    Forward,
    OwnCapture,
    had_gradients,
    is_around_blocks,
    is_own_capture,
    is_plain_call,
    is_sparse,
    is_within,
    refusal,
    refuse_disabled_compiler,
    refuse_nested,
    runs_as_python,
)
from steelyard.driver.frames import Captured
from steelyard.driver.freezing import FrozenNet, freeze, freeze_blocks
from steelyard.driver.inspected import InspectedModule
from steelyard.driver.measuring import (
    Observer,
    Observing,
    check_measured_target,
    observe,
)
from steelyard.driver.module_state import ModuleState
from steelyard.driver.outside import BypassedError
from steelyard.driver.recording import current
from steelyard.driver.saving import STATE_PREFIX, StateHook, flatten, join
from steelyard.driver.settings import AUTO, MEASURED, Settings, make_settings, settle
from steelyard.driver.stored_weights import storable_parameters
from steelyard.driver.user_warnings import warn
from steelyard.errors import SteelyardError, TargetError, UnsupportedModelError
from steelyard.insight.watching import Alarm, Watch, Watcher
from steelyard.runtime.cuda.devices import device_among, target_among
from steelyard.runtime.state import State
from steelyard.targets import CPU, CUDA, check_target
from steelyard.tensor.kv_cache import quantize_caches


def compile(
    model: torch.nn.Module,
    recipe: str | recipes.Recipe | recipes.MixedRecipe,
    *,
    target: str = "cpu",
    overrides: Mapping[str, str | recipes.Recipe | None] | None = None,
    attention: bool = False,
    save: str | None = None,
    check_finite: bool = False,
    weights: str = "cached",
    kv_cache: str | None = None,
    kv_scales: Mapping[str, tuple[float, float]] | None = None,
    blocks: str | bool | Sequence[str] = AUTO,
    watch: bool | Callable[[Alarm], Any] | Watch | None = None,
) -> Any:
    """A module like `model` whose matrix multiplications run by a recipe.

    It shares the model's parameters, buffers and submodules, and is an instance of the model's class. Methods that call
    the module, such as `generate`, run the compiled program. Nothing is compiled before the first call or `lower`.

    Args:
        model: The model. `net.model` gives it back.
        recipe: The name of a recipe, or a recipe object, such as `steelyard.tune` returns. If it leaves `weight_tiles`
            open, as `nvfp4` does, that is decided here, once for the net: a model in eval mode, or without a parameter
            that requires a gradient, is for inference and has weights in blocks; any other has them in tiles, in
            evaluation too.
        target: `cpu`. Or `cuda`, the GPU that the model is on when it is first called. Or an architecture
            as `steelyard targets` lists them, such as `cuda:sm_90a`, which needs no GPU to compile for: `lower`
            takes a model and arguments on the CPU, and `ir("ptx")` shows the code of the kernels.
        overrides: Patterns of layer names, and for each another recipe, or None for high precision. The first pattern
            that matches a layer decides.
        attention: Quantize the products of attention and their gradients, too.
        save: `"compact"` keeps less between forward and backward: the inputs of gelu and attention in bf16, and no
            codes that can be computed again from what is kept.
        check_finite: Raise `NonFiniteError` at the first operand of a GEMM that is not finite.
        weights: `"cached"` keeps quantized weights beside the parameters, until those are written. `"quantized"`
            replaces the parameters: after the first call, each parameter that only quantized GEMMs read is a quantized
            tensor. The model shares its parameters with the net, so nothing holds the high-precision weights any more.
            If the model has frozen parameters, only those are replaced, and the others can be trained; otherwise the
            net is for inference. `explain()` names the weights that stay, and why.
        kv_cache: `"fp8"` quantizes each KV cache of transformers that a call is given, as calls of `generate` are, by
            `steelyard.quantize_cache`: E4M3 with one f32 scale per token and head.
        kv_scales: Static scales of such caches: patterns of attention modules, and for each what cached keys, and what
            cached values, are decoded by, as in `{"model.layers.0.self_attn": (0.02, 0.01)}`. The first pattern that
            matches a module decides; modules that none matches have a scale per token and head. Values that are too
            large saturate, and `explain()` says how many did.
        blocks: Repeated blocks, such as the layers of a transformer, are captured and compiled once for all of them.
            `"auto"` finds them where at least four are alike, and the code around them multiplies no matrices and makes
            no checkpoints (`torch.utils.checkpoint`). A list names the modules that hold them, as in
            `["model.layers"]`. False captures the model as a whole. The results are the same.
        watch: Warn while the net trains if a layer saturates, its scale collapses, or its gradient underflows: True, a
            function that is called with each `Alarm` instead, or a `steelyard.Watch` with thresholds. Every so many
            calls of the net, 100 by default, one is measured for this.
    """
    if not isinstance(model, torch.nn.Module):
        raise UnsupportedModelError(f"steelyard.compile takes an nn.Module, got {type(model).__name__}")
    if isinstance(model, CompiledModule):
        raise UnsupportedModelError("the model is compiled already; compile `net.model` by another recipe instead")
    check_target(target)
    _check_tensors(model, target)
    settings = make_settings(
        recipe,
        overrides,
        attention=attention,
        save=save,
        check_finite=check_finite,
        weights=weights,
        kv_cache=kv_cache,
        kv_scales=kv_scales,
        target=target,
        blocks=blocks,
        watch=watch,
    )
    settings = settle(settings, model)
    if isinstance(settings.blocks, tuple):
        find_blocks(model, settings.blocks, settings.overrides)
    number_layers(model, settings.kv_scales)
    if settings.watch is not None:
        check_measured_target(target)
    net = _make_net(model, settings, storable=storable_parameters(model) if weights == "quantized" else frozenset())
    StateHook.register(model, net._steelyard.backend.state)
    return net


def compile_in_place(model: torch.nn.Module, recipe: str | recipes.Recipe, **options: Any) -> None:
    """Make a model itself the net that `compile` makes of it with these options: others hold the model already."""
    plain = _twin(model, type(model))
    made = compile(plain, recipe, **options)._steelyard.backend
    model.__class__ = _compiled_class(type(model), has_slot=False)
    backend = Backend(made.settings, model, made.state, made.storable)
    object.__setattr__(model, "_steelyard", _state_of(plain, backend))
    _begin_watch(model)


def _make_net(
    model: torch.nn.Module, settings: Settings, state: State | None = None, storable: frozenset[str] = frozenset()
) -> "CompiledModule":
    """A net of a model; in a copy, the model may have no attributes yet."""
    net = _share(model)
    object.__setattr__(net, "_steelyard", _state_of(model, Backend(settings, net, state, storable)))
    _begin_watch(net)
    return net


def _begin_watch(net: Any) -> None:
    """Watch the calls of a net, if its settings say so."""
    watch = net._steelyard.backend.settings.watch
    if watch is not None:
        observe(net, Observer(watch.every, Watcher(watch, warn).look))


@torch.compiler.disable
def _make_part(module: torch.nn.Module, name: str, backend: Backend) -> "CompiledModule":
    """A compiled module for a submodule of a net, with the net's settings, weights and layer names."""
    part = _share(module, is_block=backend.blocks is not None and name in backend.blocks.groups)
    object.__setattr__(part, "_steelyard", _state_of(module, backend, name))
    backend.name_part(part, name)
    return part


def _state_of(module: torch.nn.Module, backend: Backend, name: str | None = None) -> ModuleState:
    return ModuleState(module, backend, _make_part, name)  # pyright: ignore[reportArgumentType]


def _share(model: torch.nn.Module, *, is_block: bool = False) -> "CompiledModule":
    return _twin(model, _compiled_class(type(model), is_block=is_block))


def _twin(model: torch.nn.Module, twin_class: type) -> Any:
    twin = object.__new__(twin_class)
    # Every attribute is shared, not copied: what is set in one, by `eval()` for instance, is set in both. Not by an
    # assignment: the setter of a model's class, such as nn.LSTM, may read attributes that are not there yet.
    object.__setattr__(twin, "__dict__", model.__dict__)
    return twin


def _check_tensors(model: torch.nn.Module, target: str) -> None:
    # For CUDA they may also be on the CPU: to inspect the code, or to be moved later.
    known = ("cpu",) if target == CPU else ("cpu", "cuda")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type not in known:
            place = "on the CPU" if target == CPU else "on the CPU or a CUDA device"
            raise TargetError(f"{name} must be {place} for target {target}, got device {tensor.device}; move the model")
        if tensor.layout is not torch.strided:
            raise UnsupportedModelError(f"{name} must be a dense tensor, got layout {tensor.layout}; use to_dense()")


def _check_freezable(net: "CompiledModule") -> None:
    """Refuse to freeze what is not a net for inference on the CPU."""
    state = net._steelyard
    target = state.backend.settings.target
    if state.name is not None:
        raise UnsupportedModelError(f"{state.name} is a part of a net; freeze the net, or compile the part by itself")
    if target != CPU:
        raise TargetError(
            f"a net that is frozen must be compiled for the CPU, got target {target}; capture its calls in a CUDA graph"
        )
    if net.training:
        raise UnsupportedModelError(
            "a net that is frozen is for inference, and this one is in training mode; call net.eval() first"
        )


def _without_parts(value: Any) -> Any:
    """A value that a model may hold: never a compiled part of itself, nor a module around one, such as an adapter."""
    if not isinstance(value, torch.nn.Module):
        return value
    if isinstance(value, CompiledModule):
        return value if value._steelyard.name is None else value._steelyard.model
    for module in value.modules():
        for name, child in module._modules.items():
            if isinstance(child, CompiledModule):
                module._modules[name] = _without_parts(child)
    return value


class CompiledModule(InspectedModule):
    """What a compiled module has beyond the model's own class."""

    @runs_as_python
    def __call__(self, *arguments, **keywords) -> Any:
        """Call it with its hooks, or by what torch compiled for such a call, where nothing else is to be done."""
        if not is_dynamo_compiling():
            state = self._steelyard
            if state.short_way is not None and is_plain_call(self, state):
                run = state.short_way.find((self, *arguments), keywords)
                if run is not None:
                    state.backend.state.begin_settled_call()
                    return run(self, *arguments, **keywords)
        return super().__call__(*arguments, **keywords)

    def _run(self, *arguments, **keywords):
        if is_around_blocks(self._steelyard.backend):
            self._refuse_checkpoint()
            return self._run_inside(arguments, keywords)
        if is_within(self._steelyard.backend):
            return self._run_alone(arguments, keywords)
        observing = self._steelyard.backend.observing
        return self._run_plain(arguments, keywords) if observing is None else observing.run(self, arguments, keywords)

    def _run_plain(self, arguments: tuple, keywords: dict[str, Any]) -> Any:
        """A call that is not measured."""
        decoding = current_decoding(self)
        return self._run_alone(arguments, keywords) if decoding is None else decoding.run(arguments, keywords)

    def _run_alone(self, arguments: tuple, keywords: dict[str, Any]) -> Any:
        """A call that is not within one of the net."""
        state = self._steelyard
        if state.backend.settings.target != CPU and not state.backend.is_lowering:
            self._check_place()
        is_settled = state.checked == state.backend.graphs
        if not is_settled:
            refuse_disabled_compiler()
        if state.backend.settings.kv_cache is not None:
            scales = state.backend.cache_scales
            quantize_caches((*arguments, *keywords.values()), scales.layers, scales.given)
        runs = state.backend.state.runs
        if not is_within(state.backend):
            state.backend.state.begin_call()
        random = torch.get_rng_state() if state.is_around_blocks and not is_settled else None
        capture = OwnCapture(state.backend, around_blocks=state.is_around_blocks)
        try:
            with capture, state.backend.capture(is_settled=is_settled):
                result = self._run_inside(arguments, keywords)
        except BypassedError:
            # No program has run yet: the call begins anew, with the same number and the same random numbers.
            state.backend.state.calls -= 1
            assert random is not None, "only the first call around blocks is begun again"
            torch.set_rng_state(random)
            state.backend.capture_as_a_whole()
            return self._run_alone(arguments, keywords)
        except BaseException as error:
            if not isinstance(error, SteelyardError):
                refuse_nested((*arguments, *keywords.values()))
            if isinstance(error, CAPTURE_ERRORS):
                self._refuse_several_devices(arguments, keywords)
                raise translate(error, state.model) from None
            raise
        if state.backend.state.runs == runs:
            self._check_captured((*arguments, *keywords.values()))
        if state.checked != state.backend.graphs:
            if state.name is None:
                inspection.check_found(state.backend)
            # A call that compiled something without being recorded leaves that to the next.
            state.checked = -1 if is_settled else state.backend.graphs
        state.backend.store_weights()
        state.allow_short_way(is_settled=is_settled)
        return result

    def _run_inside(self, arguments: tuple, keywords: dict[str, Any]) -> Any:
        """The forward within a call of the net: as Python around blocks, otherwise compiled."""
        state = self._steelyard
        if state.is_around_blocks:
            return state.plain_forward(self)(*arguments, **keywords)
        itself = () if "forward" in self.__dict__ else (self,)
        captured, run = state.captured()
        return _run_captured(captured, run, (*itself, *arguments), keywords)

    def _refuse_checkpoint(self) -> None:
        """Refuse a call that torch would repeat in the backward, outside of the call of the net."""
        if had_gradients() and is_in_checkpoint(CompiledModule._run_alone.__code__):
            raise UnsupportedModelError(
                f"{self._steelyard.name} is called in torch.utils.checkpoint by a module that holds repeated blocks, "
                "where its program would run twice and move its state twice; compile the model with blocks=False"
            )

    def _check_captured(self, given: tuple) -> None:
        """Say so where torch captured nothing of a call because of an argument."""
        refuse_nested(given)
        if any(map(is_sparse, given)):
            warn("torch captured nothing of a call with a sparse tensor, which ran in high precision; use to_dense()")

    def _check_place(self) -> None:
        """Refuse a model on another device than its programs, before anything is compiled."""
        first = next(self.parameters(), None)
        if first is None or device_among([first]) is not None:
            return
        target = self._steelyard.backend.settings.target
        if target == CUDA:
            target_among([first])
        raise TargetError(
            f"a net compiled for {target} needs CUDA tensors, got parameters on {first.device}; move "
            'the model and its arguments by .to("cuda"), or inspect the code by net.lower(...) and net.ir("ptx")'
        )

    def _refuse_several_devices(self, arguments: tuple, keywords: dict[str, Any]) -> None:
        """Say so where torch captured nothing because the tensors of a call are on several GPUs."""
        if self._steelyard.backend.settings.target != CPU:
            device_among((*self.parameters(), *arguments, *keywords.values()))

    def __reduce_ex__(self, protocol):
        # A copy, or a net loaded from a file, compiles again.
        state = self._steelyard
        replaced = {} if state.replaced_forward is None else {"forward": state.replaced_forward}
        backend = state.backend
        return _make_net, (state.model, backend.settings, backend.state, backend.storable), replaced

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        # While a call is captured, return plain submodules: their ops become part of the caller's graph.
        if torch.compiler.is_dynamo_compiling() and is_own_capture():
            return super().__getattr__(name)
        # `net.model` is the user's model, untouched, unless the model has a `model` of its own.
        if name in self._modules:
            return self._steelyard.part(name)
        if name == "model":
            return self._steelyard.model
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _without_parts(value))

    def add_module(self, name: str, module: torch.nn.Module | None) -> None:
        super().add_module(name, _without_parts(module))

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._steelyard.name is not None:
            return
        for name, tensor in self._steelyard.backend.state.tensors.items():
            destination[f"{prefix}{STATE_PREFIX}{name}"] = tensor

    def state_dict(self, *arguments, prefix: str = "", keep_vars: bool = False, **keywords) -> Any:
        """The model's state dict, with plain tensors for each quantized parameter unless `keep_vars` is set."""
        made = super().state_dict(*arguments, prefix=prefix, keep_vars=keep_vars, **keywords)
        if not keep_vars:
            flatten(made, prefix)
        return made

    def _load_from_state_dict(self, state_dict, prefix, *arguments):
        # The codes of a file are the parameters, as they are, where a call would make them.
        own = f"{self._steelyard.name}." if self._steelyard.name else ""
        if not own:
            StateHook.register(self._steelyard.model, self._steelyard.backend.state)
        quantized = join(state_dict, prefix)
        self._steelyard.backend.take_weights({own + key.removeprefix(prefix): t for key, t in quantized.items()})
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self.requantize()

    @property
    @runs_as_python
    def _compiled_call_impl(self) -> None:
        # What `model.compile()` leaves in the attributes that the model shares would run instead of the net.
        return None

    def compile(self, *_, **__) -> None:
        """Does nothing, with a warning: a net is compiled already. The model is not touched."""
        warn(
            "a net runs its own compiled programs, so net.compile() has no effect; torch.compile(net) compiles the rest"
        )

    def __prepare_scriptable__(self):
        raise refusal("torch.jit.script")

    def _get_name(self) -> str:
        return f"Compiled{super()._get_name()}"

    def lower(self, *arguments, **keywords) -> "CompiledModule":
        """Compile now for arguments like these: for training if gradients are enabled.

        Buffers, state and random numbers stay as they were. For a CUDA target, the model and the arguments may be on
        the CPU: no part of the program runs then.
        """
        backend = self._steelyard.backend
        backend.is_lowering = True
        try:
            with self._unchanged():
                self(*arguments, **keywords)
                if backend.is_outdated:
                    self(*arguments, **keywords)
        finally:
            backend.is_lowering = False
        return self

    def _variant(self, variant: str, state: State | None = None) -> "CompiledModule":
        """A net of the same model with the same weights, whose programs show what low precision costs."""
        own = self._steelyard
        settings = replace(own.backend.settings, variant=variant, watch=None)
        made = _make_net(own.model, settings, own.backend.state if state is None else state, own.backend.storable)
        made._steelyard.backend.weights = own.backend.weights
        return made

    def _observing(self) -> Observing:
        """What runs the calls of the net while it is measured, the same each time."""
        state = self._steelyard
        if state.observing is None:
            state.observing = Observing(self, self._variant(MEASURED))
        return state.observing

    def freeze(self, *arguments, **keywords) -> FrozenNet:
        """A function for calls with arguments like these, which checks little and so costs little beside its program.

        For inference on the CPU. By calling it you promise that nothing of the net changes any more: no parameter, no
        attribute, and nothing else that the model's Python code reads. Weights are looked up now, once. A call
        checks that tensors have the shapes, strides and dtypes of these, and that everything else is equal. It runs
        without gradients. The model must be one graph; the net is run on copies of the arguments to find it.
        """
        _check_freezable(self)
        if self._steelyard.is_around_blocks:
            with torch.no_grad(), self._unchanged():
                frozen = freeze_blocks(self, arguments, keywords)
            if frozen is not None:
                return frozen
        whole = self._whole()
        with torch.no_grad(), whole._unchanged():
            return freeze(whole, arguments, keywords)

    def _whole(self) -> "CompiledModule":
        """A net of the same model and weights that is captured as a whole."""
        own = self._steelyard
        settings = replace(own.backend.settings, blocks=False, watch=None)
        whole = _make_net(own.model, settings, own.backend.state, own.backend.storable)
        whole._steelyard.backend.weights = own.backend.weights
        return whole

    def _whole_for_decoding(self) -> "CompiledModule":
        """The same, once for all calls of `generate`; this net tells what it compiles."""
        own = self._steelyard
        if own.decoding is None:
            with own.backend.lock:
                if own.decoding is None:
                    own.decoding = self._whole()
                    own.decoding._steelyard.backend.compilations = own.backend.compilations
        return own.decoding

    def requantize(self) -> None:
        """Quantize every weight again at the next call, after writes that torch does not count, such as to `.data`."""
        self._steelyard.backend.weights.forget()


def _run_captured(captured: Captured, run: Callable, arguments: tuple, keywords: dict[str, Any]) -> Any:
    try:
        call = current.call
        result = run(*arguments, **keywords) if call is None else call(captured, arguments, keywords)
    except BaseException as error:
        # Checkpointing ends each forward that it repeats by an error of its own.
        captured.frames.forget_call(failed=not isinstance(error, SteelyardError | _StopRecomputationError))
        raise
    if captured.frames.recent:
        captured.frames.forget_call(failed=False)
    return result


class CompiledBlock(CompiledModule):
    """A compiled block: in a call of its net, what was captured for one like it runs."""

    def __call__(self, *arguments, **keywords) -> Any:
        """Call it with its hooks."""
        state = self._steelyard
        if torch.compiler.is_dynamo_compiling() or not is_around_blocks(state.backend):
            return super().__call__(*arguments, **keywords)
        self._refuse_checkpoint()
        block = state.model
        arguments, keywords = state.own_cache.put_into(arguments, keywords)
        captured, run = state.shared()
        return _run_captured(captured, run, (block, *arguments), keywords)


class CompiledSequence(CompiledModule):
    """A compiled ModuleList or Sequential: modules reached by index run compiled, too."""

    @runs_as_python
    def __getitem__(self, key: Any) -> Any:
        state = self._steelyard
        container: Any = state.model
        if torch.compiler.is_dynamo_compiling() and is_own_capture():
            return container[key]
        if isinstance(key, slice):
            return state.slice(key)
        return state.part(list(self._modules)[key])

    @runs_as_python
    def __iter__(self) -> Iterator:
        container: Any = self._steelyard.model
        if torch.compiler.is_dynamo_compiling() and is_own_capture():
            return iter(container)
        return iter([self._steelyard.part(name) for name in self._modules])


class CompiledDict(CompiledModule):
    """A compiled ModuleDict: modules reached by key run compiled, too."""

    @runs_as_python
    def __getitem__(self, key: str) -> Any:
        container: Any = self._steelyard.model
        if torch.compiler.is_dynamo_compiling() and is_own_capture():
            return container[key]
        return self._steelyard.part(key)

    @runs_as_python
    def values(self) -> Iterable:
        """The submodules."""
        return [self[key] for key in self._modules]

    @runs_as_python
    def items(self) -> Iterable:
        """The keys and submodules."""
        return [(key, self[key]) for key in self._modules]


_compiled_classes: weakref.WeakValueDictionary[tuple[type, bool, bool], type] = weakref.WeakValueDictionary()


def _compiled_class(model_class: type, *, is_block: bool = False, has_slot: bool = True) -> type:
    """A class that is the model's class and a compiled module; one class for all nets of a model's class."""
    key = model_class, is_block, has_slot
    known = _compiled_classes.get(key)
    return known if known is not None else _compiled_classes.setdefault(key, _make_class(*key))


def _make_class(model_class: type, is_block: bool, has_slot: bool) -> type:
    base = CompiledModule
    if issubclass(model_class, torch.nn.ModuleList | torch.nn.Sequential):
        base = CompiledSequence
    elif issubclass(model_class, torch.nn.ModuleDict):
        base = CompiledDict
    namespace: dict[str, Any] = {"__module__": model_class.__module__, "forward": Forward(model_class)}
    generate = getattr(model_class, "generate", None)
    if generate is not None:
        namespace["generate"] = make_generate(generate)
    if has_slot:
        # Because the model shares the attributes in `__dict__`. An object that was a model before has no room for one.
        namespace["__slots__"] = ("_steelyard",)
    # Libraries tell by the name of a class what a model is, and write it into its configuration.
    bases = (CompiledBlock, base) if is_block else (base,)
    return type(model_class.__name__, (*bases, model_class), namespace)
