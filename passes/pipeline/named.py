"""The stages that a program goes through, and the named pipeline that leads to each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from steelyard.errors import PipelineError

STAGES = ("traced", "raised", "quantized", "fused", "partitioned", "lowered")
"""A frontend imports `traced`; the pipeline `steelyard-<stage>` leads to each other stage from the one before."""


@dataclass(frozen=True)
class Pipeline:
    """A name for a list of passes; `<option>` in the text stands for an option's value."""

    name: str
    text: str
    options: Mapping[str, str]
    """Option -> default."""
    description: str

    def values(self, given: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """The value of every option, from those that are given."""
        values: dict[str, Any] = dict(self.options)
        for name, value in given:
            if name not in values:
                known = ", ".join(values) or "none"
                raise PipelineError(f"pipeline {self.name} has no option '{name}'; its options: {known}")
            values[name] = value
        return values


_PIPELINES = (
    Pipeline(
        "steelyard-raised",
        "scaled-raise-gemms,canonicalize,cse,scaled-verify-stage{stage=raised}",
        {},
        "Every GEMM is a `scaled.matmul`; no later stage looks at torch's spellings.",
    ),
    Pipeline(
        "steelyard-quantized",
        "scaled-apply-recipe{recipe=<recipe> overrides=<overrides> attention=<attention> "
        "unmatched=<unmatched>},"
        "scaled-insert-quantize,scaled-quantize-caches,scaled-merge-quantize,cse,scaled-canonicalize,"
        "scaled-verify-stage{stage=quantized}",
        {"recipe": "mxfp8", "overrides": "", "attention": "false", "unmatched": "fail"},
        "The operands of every GEMM that the recipe quantizes are quantized, each tensor once.",
    ),
    Pipeline(
        "steelyard-measured",
        "scaled-insert-measures{influence=<influence>},scaled-verify-stage{stage=quantized}",
        {"influence": "false"},
        "After steelyard-quantized, where `net.measure` asks for it: each GEMM's losses are results of the program.",
    ),
    Pipeline(
        "steelyard-switched",
        "scaled-insert-switches,scaled-verify-stage{stage=quantized}",
        {},
        "After steelyard-quantized, where `net.attribute` asks for it: each GEMM has a switch that turns it off.",
    ),
    Pipeline(
        "steelyard-fused",
        "scaled-fuse-producer,scaled-fuse-epilogue,canonicalize,cse,scaled-verify-stage{stage=fused}",
        {},
        "Norms and activations are quantized as they are computed; GEMMs apply what follows them.",
    ),
    Pipeline(
        "steelyard-partitioned",
        "scaled-hoist-from-checkpoints,scaled-quantize-residuals,scaled-hoist-weights,canonicalize,cse,scaled-partition{save=<save>},"
        "scaled-verify-stage{stage=partitioned}",
        {"save": ""},
        "Weights are quantized outside the step; a function with gradients is split into a forward and a backward.",
    ),
    Pipeline(
        "steelyard-lowered",
        "scaled-fold-views,scaled-merge-duplicates,scaled-legalize{target=<target>},"
        "scaled-pack-weights{target=<target>},scaled-expand-scales,scaled-lower-storage,"
        "scaled-lower-attention{target=<target>},scaled-fuse-caches,scaled-fuse-appends,"
        "scaled-write-in-place{target=<target>},scaled-select-kernels{target=<target>},"
        "scaled-lower-splits{target=<target>},scaled-lower-stacks{target=<target>},"
        "scaled-lower-blocks{target=<target>},scaled-lower-positions{target=<target>},"
        "scaled-lower-indexing{target=<target>},scaled-lower-rows{target=<target>},"
        "scaled-fuse-elementwise{target=<target>},"
        "scaled-lower-concatenation{target=<target>},scaled-resolve-sizes,scaled-plan-launches{target=<target>},"
        "scaled-plan-memory,scaled-build-tape,scaled-verify-stage{stage=lowered}",
        {"target": "cpu"},
        "Only calls of kernels, and torch's ops on plain tensors, are left.",
    ),
)


def all_pipelines() -> dict[str, Pipeline]:
    """Every named pipeline, by name."""
    return {pipeline.name: pipeline for pipeline in _PIPELINES}
