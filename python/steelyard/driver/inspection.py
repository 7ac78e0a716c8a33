"""What a net shows of itself: its IR, its explanation, its memory, and a warning where little of it is quantized."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from steelyard.driver.backend import Backend
from steelyard.driver.compilation import CUDA_STAGES, Compilation, all_stages
from steelyard.driver.explanation import Explanation, TorchOp, little_is_quantized
from steelyard.driver.memory import Memory, parameter_bytes, tensor_bytes
from steelyard.driver.outside import AROUND_BLOCKS
from steelyard.driver.printed_graphs import distinct, print_graphs, print_graphs_of_layers
from steelyard.driver.settings import AUTO
from steelyard.driver.user_warnings import warn
from steelyard.errors import RecipeError, SteelyardError, UnsupportedModelError, shown
from steelyard.files import write_folder
from steelyard.ir.nesting import graph_names
from steelyard.runtime.arena import Arenas
from steelyard.runtime.state import SATURATED
from steelyard.targets import CPU


def print_ir(backend: Backend, stage: str, layer: str | None) -> str:
    """The IR of a stage of every graph, or of the layers that a pattern matches."""
    known = all_stages(backend.settings.target)
    if not isinstance(stage, str) or stage not in known:
        raise SteelyardError(f"stage must be one of {', '.join(known)}, got {shown(stage)}")
    if not isinstance(layer, str | None):
        raise SteelyardError(f"layer must be a pattern of layer names, got {shown(layer)}")
    compilations = _compilations(backend)
    if stage == "ptx":
        if layer is not None:
            raise SteelyardError("PTX does not say which layers a kernel is for; look at stage lowered by layer")
        return "\n".join(text for compilation in distinct(compilations) if (text := compilation.ptx))
    if stage == "tape":
        if layer is not None:
            raise SteelyardError("a tape is shown as a whole; look at stage lowered by layer")
        return _print_tapes(compilations)
    return print_graphs(compilations, stage) if layer is None else print_graphs_of_layers(compilations, stage, layer)


def _print_tapes(compilations: list[Compilation]) -> str:
    """The native steps of each graph, by function."""
    texts = []
    for graph, compilation in zip(graph_names(), distinct(compilations), strict=False):
        assert compilation.program is not None, "a compilation that is kept has run"
        texts += [f"// {graph} @{function}, {text}" for function, text in compilation.program.tapes]
    return "\n\n".join(texts)


def dump_ir(backend: Backend, folder: str | os.PathLike[str]) -> list[Path]:
    """Write the IR after every pass, and the program, of every graph into numbered files; returns their paths.

    A graph that several layers share is written once, with the names of the first.
    """
    if not isinstance(folder, str | os.PathLike):
        raise SteelyardError(f"folder must be the path of a folder, got {shown(folder)}")
    folder = Path(folder)
    texts: dict[str, str] = {}
    for graph, compilation in zip(graph_names(), distinct(_compilations(backend)), strict=False):
        for number, (name, text) in enumerate(compilation.replay()):
            texts[f"{graph}_{number:02}_{name}.mlir"] = text
        for stage in CUDA_STAGES if compilation.settings.target != CPU else ():
            texts[f"{graph}_kernels.{'ptx' if stage == 'ptx' else f'{stage}.mlir'}"] = compilation.text(stage)
        assert compilation.program is not None, "a compilation that is kept has run"
        texts[f"{graph}_program.py"] = compilation.program.text
    return write_folder(folder, texts)


def explain(backend: Backend, parameters: Mapping[str, torch.Tensor], ops: bool) -> Explanation:
    """One row per GEMM of every graph and between them; with the ops that torch runs, if they are asked for."""
    if not backend.rows:
        _compilations(backend)
    kept = backend.kept_weights
    notes = [backend.settings.settled] if backend.settings.settled else []
    if backend.settings.kv_cache is not None:
        notes.append(f"KV caches hold keys and values in e4m3, with {_cache_scales(backend)}")
    notes += _saturated_notes(backend)
    notes += [note for compilation in backend.compilations for note in compilation.notes]
    notes += [f"{name} stays in high precision beside its codes: {reason}" for name, reason in kept.items()]
    rows = [replace(row, stays=kept.get(row.weight, "")) if kept else row for row in backend.rows]
    return Explanation(rows, notes, parameters, _torch_ops(backend) if ops else ())


def _torch_ops(backend: Backend) -> list[TorchOp]:
    """What torch runs beside kernels, with the shares of the last call that was profiled."""
    programs = [compilation.program for compilation in _compilations(backend)]
    counts = Counter(call.kernel for program in programs if program is not None for call in program.torch_calls)
    shares: dict[str, float] = {}
    for row in backend.profiled.rows if backend.profiled is not None else ():
        shares[row.kernel] = shares.get(row.kernel, 0.0) + row.share
    made = [
        TorchOp(op.removeprefix("torch "), count, shares.get(op, 0.0) if backend.profiled is not None else None)
        for op, count in counts.items()
    ]
    return sorted(made, key=lambda op: (-(op.share or 0), -op.calls, op.op))


def _cache_scales(backend: Backend) -> str:
    count = len(backend.cache_scales.layers)
    own = "one scale per token and head"
    return f"static scales in {count} layers, and {own} in others" if count else own


def _saturated_notes(backend: Backend) -> list[str]:
    """What calls so far counted of values that static scales saturate."""
    counts = {name: int(tensor) for name, tensor in backend.state.tensors.items() if name.endswith(SATURATED)}
    if not counts:
        return []
    found = [f"{name.removesuffix(SATURATED)}: {count}" for name, count in counts.items() if count]
    return [f"static scales: {len(counts)}; values saturated so far: {sum(counts.values())}", *found]


def measure_memory(backend: Backend, parameters: Iterable[torch.Tensor], steps: int) -> Memory:
    """Bytes that a net holds; `steps` are those that steps of `generate` leave to the next ones."""
    report = Memory(
        **parameter_bytes(parameters),
        quantized_weights=backend.weights.nbytes(),
        workspace=sum(arenas.nbytes() for arenas in _arenas(backend)) + backend.results.nbytes() + steps,
        state=tensor_bytes(backend.state.tensors.values()),
    )
    # A graph that was compiled again, for other sizes, counts once.
    training = {frozenset(row.layer for row in c.rows): c for c in backend.compilations if c.eager_kept}.values()
    if not training:
        return report
    kept = {
        "kept_for_backward": sum(sum(c.kept.values()) for c in training),
        "kept_by_torch": sum(sum(c.eager_kept.values()) for c in training),
    }
    return Memory(report | kept)


def _arenas(backend: Backend) -> Iterable[Arenas]:
    """The memory of all programs; those that are bound to several layers share theirs."""
    programs = [compilation.program for compilation in backend.compilations if compilation.program is not None]
    return {id(arenas): arenas for program in programs for arenas in program.arenas}.values()


def check_found(backend: Backend) -> None:
    """Refuse a model in which the recipe, or an override, applies to nothing."""
    rows = backend.rows
    if not rows:
        raise UnsupportedModelError(
            "the model must have a matrix multiplication, and none was found in what was run; call the model "
            "itself, without steelyard.compile"
        )
    layers = {row.layer for row in rows}
    # The layers of experts are their weights, which overrides also find by their module.
    layers |= {row.weight.rpartition(".")[0] for row in rows if row.layer == row.weight}
    settings = backend.settings
    unmatched = [name for name in settings.overrides.unmatched(layers) if name not in settings.unmatched]
    if unmatched:
        pattern, known = sorted(unmatched)[0], ", ".join(sorted(filter(None, layers)))
        raise RecipeError(f"override pattern {pattern!r} matches no layer; the layers with GEMMs: {known}")
    unused = [name for each in backend.settings.recipes for name in each.unused_input_scales(layers)]
    if unused:
        known = ", ".join(sorted(filter(None, layers)))
        raise RecipeError(f"input_scales has {unused[0]!r}, which matches no layer; the layers with GEMMs: {known}")
    if backend.has_warned:
        return
    around = [row for row in rows if row.reason == AROUND_BLOCKS] if backend.settings.blocks == AUTO else []
    warning = f"a product of {around[0].layer or 'the model'}: {AROUND_BLOCKS}" if around else little_is_quantized(rows)
    if warning:
        backend.has_warned = True
        warn(warning)


def _compilations(backend: Backend) -> list[Compilation]:
    compilations = backend.compilations
    if not compilations:
        raise SteelyardError("nothing is compiled yet: call the net, or net.lower(...) with example arguments")
    return compilations
