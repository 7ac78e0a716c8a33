"""What a report says of a net, as plain data: the page is made from nothing else.

`docs/report.md` documents the fields as the schema of the JSON beside a page.
"""

from dataclasses import dataclass, field

from steelyard.insight.results import VERSION, Attribution, GemmMeasurement, OutputError, ParameterGradient, Result


@dataclass
class ReportRow(Result):
    """One GEMM: what `explain()` says of it, and what was measured."""

    layer: str
    kind: str
    """`fprop`, `dgrad` or `wgrad`; empty for an op that is more than one product."""
    sizes: list[str]
    """M, N and K; `?` for a size known only at run time, and empty for an op that is more than one product."""
    lhs: str
    rhs: str
    kernel: str
    padding: str
    producer: str
    """What is fused into the quantize of lhs."""
    epilogue: str
    """What is applied to the product before it is stored."""
    reason: str
    """Why it stayed in high precision, or why CUDA emulates it."""
    weight: str
    """The parameter that rhs is quantized from."""
    flops: int
    is_quantized: bool
    source: str
    """The line of the model's code that it comes from, as `file:line`; empty where that is not known."""
    code: str
    """The text of that line; empty where it cannot be read."""
    number: int
    """Which of the rows of its layer and kind, from 0: a layer may be called several times."""
    measured: GemmMeasurement | None


@dataclass
class Shares(Result):
    """How much of a net is quantized."""

    flops: int
    quantized_flops: int
    weight_bytes: int
    """The bytes of all parameters, as they are in high precision."""
    quantized_weight_bytes: int
    """Of those, the parameters that quantized GEMMs read."""


@dataclass
class HeldBytes(Result):
    """Bytes that a net holds for one purpose, as `net.memory()` names it."""

    purpose: str
    bytes: int


@dataclass
class MemoryUse(Result):
    """The memory of a net between calls, and over a call."""

    held: list[HeldBytes]
    weights: int
    """The bytes of parameters as calls read them: in codes and scales where they are quantized."""
    weights_high_precision: int
    """The bytes of the same parameters in high precision."""
    ops: list[str]
    """The steps of the lowered program that make tensors, in the order in which they run."""
    layers: list[str]
    """The layer of each step."""
    live_bytes: list[int]
    """The bytes of the values that live during each step, without parameters, quantized weights and state."""


@dataclass
class KernelTime(Result):
    """How long one kernel, or one op of torch's, took for one layer, as `net.profile` times steps."""

    kernel: str
    """As in `cpu nvfp4 gemm fprop 128x768x256`; an op of torch's begins with `torch `."""
    layer: str
    calls: int
    """Per call of the net."""
    seconds: float
    """Per call of the net."""


@dataclass
class Timing(Result):
    """How long a call takes: the shortest of several, the net and the model in turns."""

    seconds: float
    seconds_high_precision: float | None
    """Of the model itself; None if its parameters are quantized, so that it runs in no other precision."""
    runs: int
    threads: int
    kernels: list[KernelTime]
    """The steps of a call, in the order of the program."""


@dataclass
class StageText(Result):
    """The IR of a stage."""

    name: str
    lines: list[str]
    layers: list[int]
    """For each line the number of its layer in `Program.layers`; -1 where it belongs to none."""


@dataclass
class SharedLayer(Result):
    """A layer whose graph is printed by the name of another."""

    layer: str
    printed: str


@dataclass
class Program(Result):
    """The IR of every stage. A graph that several layers share is there once."""

    layers: list[str]
    shared: list[SharedLayer]
    stages: list[StageText]


@dataclass
class Report(Result):
    """Everything that the page shows."""

    model: str
    """The name of the model's class."""
    recipe: str
    target: str
    steelyard: str
    """The version that made it."""
    steps: int
    """How many calls were measured; 0 if the report is of the program alone."""
    rows: list[ReportRow]
    notes: list[str]
    """What `explain()` says below its table."""
    shares: Shares
    output: OutputError | None
    attribution: Attribution | None
    memory: MemoryUse
    timing: Timing | None
    program: Program
    gradients: list[ParameterGradient] = field(default_factory=list)
    """Of each parameter, where training steps were measured."""
    version: int = field(default=VERSION, kw_only=True)
