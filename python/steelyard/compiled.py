"""`steelyard.compile`: a module whose calls run the compiled program."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.exc import BackendCompilerFailed

from steelyard import recipes
from steelyard.errors import RecipeError, SteelyardError, TargetError, UnsupportedModelError
from steelyard.explanation import Explanation
from steelyard.frontend.backend import Backend
from steelyard.stages import STAGES, Settings, make_settings

TARGETS = ("cpu",)
_STATE_PREFIX = "_steelyard."


def compile(
    model: torch.nn.Module,
    recipe: str | recipes.Recipe,
    *,
    target: str = "cpu",
    overrides: Mapping[str, str | recipes.Recipe | None] | None = None,
    save: str | None = None,
    check_finite: bool = False,
) -> Any:
    """A module like `model`, whose matrix multiplications run by a recipe.

    It shares the model's parameters, buffers and submodules, and is an instance of the model's class: methods that
    call the module, such as `generate`, run the compiled program. `overrides` maps patterns of layer names to another
    recipe, or to None for high precision; the first that matches a layer decides. `save="compact"` keeps less between
    forward and backward: the inputs of gelu and attention in bf16, and no codes that can be made again from what is
    kept. `check_finite` raises `NonFiniteError` at the first operand of a GEMM that is not finite. Nothing is compiled
    before the first call or `lower`.
    """
    if not isinstance(model, torch.nn.Module):
        raise UnsupportedModelError(f"steelyard.compile takes an nn.Module, got {type(model).__name__}")
    if isinstance(model, CompiledModule):
        raise UnsupportedModelError("the model is compiled already; compile `net.model` by another recipe instead")
    if target not in TARGETS:
        raise TargetError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    _check_tensors(model)
    return _make_net(model, make_settings(recipe, overrides, save=save, check_finite=check_finite))


def _make_net(model: torch.nn.Module, settings: Settings) -> "CompiledModule":
    net = object.__new__(_compiled_class(type(model)))
    # Every attribute is shared, not copied: what is set in one, as by `eval()`, is set in both.
    net.__dict__ = model.__dict__
    object.__setattr__(net, "_steelyard", _State(net, model, settings))
    return net


def _check_tensors(model: torch.nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type not in TARGETS:
            raise TargetError(f"{name} must be on the CPU for target cpu, got device {tensor.device}; move the model")
        if tensor.layout is not torch.strided:
            raise UnsupportedModelError(f"{name} must be a dense tensor, got layout {tensor.layout}; use to_dense()")


class _State:
    """What a compiled module has beyond the model."""

    def __init__(self, net: torch.nn.Module, model: torch.nn.Module, settings: Settings):
        self.model = model
        self.backend = Backend(settings, net)
        # One cache of compiled code a net: torch shares it by default, and runs nets beyond its limit uncompiled.
        compile_options: dict[str, Any] = {"backend": self.backend, "isolate_recompiles": True}
        self.forward = torch.compile(type(model).forward, **compile_options)


class CompiledModule(torch.nn.Module):
    """The part of a compiled module that is not the model's own class."""

    _steelyard: _State

    def forward(self, *arguments, **keywords):
        """Run the compiled program."""
        try:
            result = self._steelyard.forward(self, *arguments, **keywords)
        except BackendCompilerFailed as error:
            if isinstance(error.inner_exception, SteelyardError):
                raise error.inner_exception from None
            raise
        self._check_found()
        return result

    def __reduce_ex__(self, protocol):
        # A copy, or what is loaded from a file, compiles anew.
        return _make_net, (self._steelyard.model, self._steelyard.backend.settings)

    def __getattr__(self, name: str) -> Any:
        # `net.model` is the user's model, untouched, unless the model has a `model` of its own.
        if name == "model" and "model" not in self._modules:
            return self._steelyard.model
        return super().__getattr__(name)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, tensor in self._steelyard.backend.settings.state.tensors.items():
            destination[f"{prefix}{_STATE_PREFIX}{name}"] = tensor

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors):
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)
        # A checkpoint of the plain model has none of these, and loads all the same.
        own = f"{prefix}{_STATE_PREFIX}"
        unexpected[:] = [key for key in unexpected if not key.startswith(own)]
        loaded = {key.removeprefix(own): t.detach().clone() for key, t in state_dict.items() if key.startswith(own)}
        self._steelyard.backend.settings.state.put(loaded)
        self.requantize()

    def lower(self, *arguments, **keywords) -> "CompiledModule":
        """Compile for arguments like these, now: for training if gradients are on.

        The call that does so leaves buffers, state and random numbers as they were.
        """
        before = [(buffer, buffer.clone()) for buffer in self.buffers()]
        state = self._steelyard.backend.settings.state
        tensors = dict(state.tensors)
        with torch.random.fork_rng(devices=[]):
            try:
                self(*arguments, **keywords)
            finally:
                state.tensors = tensors
                for buffer, value in before:
                    buffer.data.copy_(value)
        return self

    def ir(self, stage: str) -> str:
        """The IR of a stage: traced, raised, quantized, fused or lowered."""
        if stage not in STAGES:
            raise SteelyardError(f"stage must be one of {', '.join(STAGES)}, got {stage!r}")
        texts = [compilation.stages[stage] for compilation in self._compilations()]
        return "\n".join(texts)

    def ir_dump(self, folder: str | Path) -> list[Path]:
        """Write every stage of every graph into numbered files."""
        compilations = self._compilations()
        Path(folder).mkdir(parents=True, exist_ok=True)
        written = []
        for graph, compilation in enumerate(compilations):
            for number, (stage, text) in enumerate(compilation.stages.items()):
                path = Path(folder, f"graph{graph}_{number}_{stage}.mlir")
                path.write_text(text)
                written.append(path)
            path = Path(folder, f"graph{graph}_program.py")
            path.write_text(compilation.program.text)
            written.append(path)
        return written

    def explain(self) -> Explanation:
        """One row a GEMM: its formats and kernel, or why it stayed in high precision."""
        return Explanation([row for compilation in self._compilations() for row in compilation.rows])

    def memory(self) -> dict[str, int]:
        """Bytes that the net holds: its parameters, and the quantized weights it keeps beside them."""
        parameters = {id(p): p.numel() * p.element_size() for p in self.parameters()}
        quantized = self._steelyard.backend.weights.nbytes()
        training = next((c for c in reversed(self._steelyard.backend.compilations) if c.eager_kept), None)
        report = {"parameters": sum(parameters.values()), "quantized_weights": quantized}
        if training is None:
            return report
        kept = {"kept_for_backward": sum(training.kept.values()), "kept_by_torch": sum(training.eager_kept.values())}
        return report | kept

    def requantize(self) -> None:
        """Quantize every weight anew at the next call: for writes that nothing announces, as through `.data`."""
        self._steelyard.backend.weights.forget()

    def _compilations(self) -> list:
        compilations = self._steelyard.backend.compilations
        if not compilations:
            raise SteelyardError("nothing is compiled yet: call the net, or net.lower(...) with example arguments")
        return compilations

    def _check_found(self) -> None:
        """Refuse to go on as if a recipe had been applied where it met nothing."""
        compilations = self._steelyard.backend.compilations
        if not any(c.rows for c in compilations):
            raise UnsupportedModelError(
                "the model must have a matrix multiplication, and none was found in what was compiled (torch runs some "
                "layers, as nn.LSTM, where no compiler sees them); call the model itself, without steelyard.compile"
            )
        unmatched = set.intersection(*(set(c.unmatched) for c in compilations)) if compilations else set()
        if unmatched:
            layers = sorted({row.layer for c in compilations for row in c.rows if row.layer})
            pattern, known = sorted(unmatched)[0], ", ".join(layers)
            raise RecipeError(f"override pattern {pattern!r} matches no layer; the layers with GEMMs: {known}")


@functools.cache
def _compiled_class(model_class: type) -> type:
    """A class that is the model's class and a compiled module."""
    # A slot, because the attributes in `__dict__` are the model's too.
    namespace = {"__module__": model_class.__module__, "__slots__": ("_steelyard",)}
    return type(f"Compiled{model_class.__name__}", (CompiledModule, model_class), namespace)
