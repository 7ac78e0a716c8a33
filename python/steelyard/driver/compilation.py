"""One graph on its way from ATen ops to a program."""

import io
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from torch_mlir import ir

from steelyard.dialect import make_context, print_module
from steelyard.driver import stages
from steelyard.driver.explanation import Row, rows_of
from steelyard.driver.program_cache import CachedLowering, Lowering
from steelyard.driver.quantizers import UserQuantizers
from steelyard.driver.settings import Settings
from steelyard.errors import InternalError, SteelyardError
from steelyard.ir.renaming import Renaming
from steelyard.ir.saved import eager_bytes, kept_bytes, shortened
from steelyard.passes.pipeline.text import run_pass_by_pass
from steelyard.runtime.entry import BlockStep
from steelyard.runtime.program import Program
from steelyard.runtime.state import State
from steelyard.runtime.weights import Weights
from steelyard.targets import CPU, cuda_target
from steelyard.targets.architectures import Target

_KERNEL_STAGES = ("gpu", "nvvm")
CUDA_STAGES = (*_KERNEL_STAGES, "ptx")
"""Stages of the generated kernels, which only programs for CUDA have."""
CPU_STAGES = ("tape",)
"""What only programs for the CPU have: the lists of native steps that a program runs."""


def all_stages(target: str) -> tuple[str, ...]:
    """The stages that a program for a target can be looked at in."""
    return (*stages.STAGES, *(CPU_STAGES if target == CPU else CUDA_STAGES))


class Compilation:
    """One graph on its way from ATen ops to a program; keeps the module of every stage."""

    def __init__(self, settings: Settings, state: State, weights: Weights, blocks: Sequence[BlockStep] = ()):
        self.settings = settings
        self._blocks = blocks
        """What the program runs as steps, beside kernels."""
        self._state = state
        self._weights = weights
        self.stages: dict[str, bytes] = {}
        """The bytecode of each stage's module, which is printed only on request."""
        self.rows: list[Row] = []
        self.shortened: list[tuple[str, str]] = []
        """Layers that keep values in fewer bits than they computed them in, and what they are."""
        self.program: Program | None = None
        self.kept: Counter[str] = Counter()
        """Bytes that the forward saves for the backward, by layer."""
        self.eager_kept: Counter[str] = Counter()
        """Bytes that torch would save."""
        self.seconds = 0.0
        """How long the stages took."""
        self.was_cached = False
        """Whether they were read from the disk cache."""
        self.source = self
        """The compilation that this one is bound to other layers from; itself if it ran through the stages."""
        self.renaming: Renaming | None = None
        """From the names of the source to its own."""

    def bound_to(self, renaming: Renaming) -> "Compilation":
        """The same compilation for other parameters and layers: stages, code and memory are shared."""
        assert self.program is not None, "what is bound has run"
        bound = Compilation(self.settings, self._state, self._weights)
        bound.source, bound.renaming = self, renaming
        bound.stages, bound.was_cached = self.stages, self.was_cached
        bound.program = self.program.bound_to(renaming)
        bound.rows = [
            replace(row, layer=renaming.layer(row.layer), weight=renaming.parameter(row.weight)) for row in self.rows
        ]
        bound.shortened = [(renaming.layer(layer), what) for layer, what in self.shortened]
        bound.kept, bound.eager_kept = (_renamed(counter, renaming) for counter in (self.kept, self.eager_kept))
        return bound

    @property
    def notes(self) -> list[str]:
        """Other places where precision was reduced."""
        return [f"{layer or 'the model'}: {what}" for layer, what in self.shortened]

    def run(self, module: ir.Module) -> Program:
        """Take an imported module through every stage."""
        try:
            return self._run(module)
        except SteelyardError:
            raise
        except Exception as error:
            raise InternalError(
                f"{type(error).__name__} in the compiler: {error}; please report it with the model, and leave out the "
                "layer meanwhile: @torch.compiler.disable on a function keeps it uncompiled"
            ) from error

    def _run(self, module: ir.Module) -> Program:
        start = time.perf_counter()
        self._record("traced", module)
        cached = CachedLowering(self.stages["traced"], self.settings)
        found = cached.load(module.context)
        if found is None:
            lowering = self._lower(module)
        else:
            lowering, module = found
        self.was_cached = found is not None
        self.stages |= lowering.stages
        self.rows, self.shortened = lowering.rows, lowering.shortened
        self.kept, self.eager_kept = lowering.kept, lowering.eager_kept
        quantizers = UserQuantizers(self.settings)
        self.program = stages.make_program(module, self.settings, self._state, quantizers, self._weights, self._blocks)
        self.seconds = time.perf_counter() - start
        if found is None:
            cached.store(lowering)
        return self.program

    def _lower(self, module: ir.Module) -> Lowering:
        """Run the passes of every stage."""
        made: dict[str, bytes] = {}
        eager_kept = eager_bytes(module.operation)
        stages.make_raised(module, self.settings)
        made["raised"] = _bytecode(module)
        stages.make_quantized(module, self.settings)
        made["quantized"] = _bytecode(module)
        stages.make_fused(module, self.settings)
        rows = rows_of(module, self.settings.target)
        made["fused"] = _bytecode(module)
        stages.make_partitioned(module, self.settings)
        kept = kept_bytes(module.operation)
        layers = shortened(module.operation)
        made["partitioned"] = _bytecode(module)
        stages.make_lowered(module, self.settings)
        made["lowered"] = _bytecode(module)
        return Lowering(made, rows, layers, kept, eager_kept)

    def module(self, stage: str) -> bytes:
        """The bytecode of a stage; kernels are generated on request."""
        if stage in _KERNEL_STAGES and stage not in self.stages:
            module = ir.Module.parse(self.stages["lowered"], make_context())
            stages.make_kernels(module, self._cuda_target(stage), stage)
            self._record(stage, module)
        return self.stages[stage]

    def text(self, stage: str) -> str:
        """The text of a stage."""
        if stage == "ptx":
            return self.ptx
        module = ir.Module.parse(self.module(stage), make_context())
        return print_module(module.operation)

    @cached_property
    def ptx(self) -> str:
        """The kernels that the program launches, one PTX module per kernel."""
        module = ir.Module.parse(self.stages["lowered"], make_context())
        return stages.make_ptx(module, self._cuda_target("ptx"))

    def _cuda_target(self, stage: str) -> Target:
        target = cuda_target(self.settings.target)
        if target is None:
            raise SteelyardError(f"only programs for CUDA have the stage {stage}, and this net is compiled for the CPU")
        return target

    def replay(self) -> Iterator[tuple[str, str]]:
        """Run every pass again: the name of each pass, and the IR after it."""
        context = make_context()
        module = ir.Module.parse(self.stages["traced"], context)
        yield "traced", print_module(module.operation)
        for stage in stages.STAGES[1:]:
            for pass_name, left in run_pass_by_pass(module, stages.pipeline_of(stage, self.settings)):
                yield pass_name, print_module(left.operation)

    def _record(self, stage: str, module: ir.Module) -> None:
        self.stages[stage] = _bytecode(module)


def _renamed(counter: Counter[str], renaming: Renaming) -> Counter[str]:
    """The same counts of other layers; what is of no layer stays so."""
    return Counter({renaming.layer(layer) if layer else "": count for layer, count in counter.items()})


def _bytecode(module: ir.Module) -> bytes:
    """A module as bytecode: unlike its text, that has locations."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()
