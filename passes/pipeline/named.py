"""Named pipelines: the stages a program passes through, each a list of passes."""

from dataclasses import dataclass

from steelyard.errors import PipelineError


@dataclass(frozen=True)
class Pipeline:
    """A name for a list of passes; `<option>` in the text stands for an option's value."""

    name: str
    text: str
    options: dict[str, str]
    """Option -> default."""
    description: str

    def expand(self, values: list[tuple[str, str]]) -> str:
        """The pipeline's text with its options filled in."""
        options = dict(self.options)
        for name, value in values:
            if name not in options:
                known = ", ".join(options) or "none"
                raise PipelineError(f"pipeline {self.name} has no option '{name}'; its options: {known}")
            options[name] = value
        text = self.text
        for name, value in options.items():
            text = text.replace(f"<{name}>", value)
        return text


_PIPELINES = (
    Pipeline(
        "steelyard-raised",
        "scaled-raise-gemms,canonicalize",
        {},
        "Every GEMM is a `scaled.matmul`; nothing after this stage looks for torch's spellings.",
    ),
    Pipeline(
        "steelyard-quantized",
        "scaled-apply-recipe{recipe=<recipe>},scaled-insert-quantize,scaled-merge-quantize,cse,scaled-canonicalize",
        {"recipe": "mxfp8"},
        "Operands of every GEMM that the recipe takes are quantized, each tensor once.",
    ),
    Pipeline(
        "steelyard-fused",
        "scaled-fuse-producer,scaled-fuse-epilogue,canonicalize,cse",
        {},
        "Norms and activations are quantized as they are computed; GEMMs apply what follows them.",
    ),
    Pipeline(
        "steelyard-partitioned",
        "scaled-hoist-weights,canonicalize,cse,scaled-partition{save=<save>}",
        {"save": ""},
        "Weights are made outside of the step; a function with gradients is a forward and a backward.",
    ),
    Pipeline(
        "steelyard-lowered",
        "scaled-legalize{target=<target>},scaled-pack-weights{target=<target>},scaled-expand-scales,"
        "scaled-lower-storage,scaled-select-kernels{target=<target>},scaled-plan-memory",
        {"target": "cpu"},
        "All that is left are calls of kernels and torch's ops on plain tensors.",
    ),
)


def all_pipelines() -> dict[str, Pipeline]:
    """Every named pipeline, by name."""
    return {pipeline.name: pipeline for pipeline in _PIPELINES}
