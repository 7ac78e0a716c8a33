"""The attributes by which stages hand facts to each other: each is named, documented and typed here and nowhere else.

`scaled-verify-stage` holds every module against this list.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """An attribute of the contract between stages."""

    name: str
    carriers: tuple[str, ...]
    """What may have it: `argument`, `result`, `function`, `kernel` (a declaration), `call`, or an op by its name."""
    kind: str
    """`unit`, `string`, `strings`, `integer`, `integers`, `symbol`, `symbols`, `dictionary` or `scheme`."""
    stages: tuple[str, ...]
    """The stages that may have it; empty for one that lives only between two passes."""
    meaning: str


FACTS: dict[str, Fact] = {}
_ALL = ("traced", "raised", "quantized", "fused", "partitioned", "lowered")


def _fact(name: str, carriers: str, kind: str, stages: tuple[str, ...], meaning: str) -> str:
    FACTS[name] = Fact(name, tuple(carriers.split()), kind, stages, meaning)
    return name


PARAMETER = _fact("scaled.parameter", "argument", "string", _ALL, "The name of the parameter that the argument is.")
STORED = _fact(
    "scaled.stored", "argument", "scheme", _ALL, "The parameter is a quantized tensor; how it holds its rows."
)
STORED_TRANSPOSED = _fact(
    "scaled.stored_transposed", "argument", "scheme", _ALL, "The same of the rows of its transpose."
)
WRITTEN = _fact(
    "scaled.written", "argument", "integer", _ALL, "The result that the caller's tensor gets as its values."
)
TANGENT = _fact("scaled.tangent", "argument", "unit", _ALL, "The argument is the gradient of an output.")
GRADIENT = _fact("scaled.gradient", "result", "string", _ALL, "The argument whose gradient the result is.")
STATE = _fact(
    "scaled.state", "argument result", "string", _ALL[2:], "The name of the state that it is: `mlp.up.input.scale`."
)
MEASURES = _fact(
    "scaled.measures",
    "result",
    "strings",
    _ALL[2:],
    "What the numbers are of, as in `mlp.up:fprop:0:lhs`: layer, kind, number among its GEMMs, and operand or result.",
)
WEIGHT = _fact("scaled.weight", "argument", "symbol", _ALL[4:], "The function that makes it from a parameter.")
SOURCES = _fact("scaled.sources", "argument", "integers", _ALL[4:], "Which arguments that function takes.")
WEIGHT_KEY = _fact(
    "scaled.weight_key", "function", "string", _ALL[4:], "Equal where functions, of any program, make equal weights."
)
WEIGHT_FORM = _fact(
    "scaled.weight_form",
    "function",
    "dictionary",
    _ALL[4:],
    "What a parameter that is quantized already must hold to be this weight; absent where no parameter can be.",
)
HANDED = _fact(
    "scaled.handed", "argument", "string", _ALL[4:], "Of a body: a quantized tensor that its op has for it, by name."
)
PRIMAL = _fact("scaled.primal", "argument", "integer", _ALL[4:], "Of a backward: which argument of the forward it is.")
SAVED = _fact("scaled.saved", "argument result", "unit", _ALL[4:], "What a forward leaves to its backward.")
PART = _fact("scaled.part", "argument result", "string", _ALL[5:], "Which part of a quantized tensor it is.")

KIND = _fact(
    "scaled.kind",
    "stablehlo.dot_general jax.ragged_dot_general",
    "string",
    _ALL,
    "Which of the three products of its layer the op is, where the frontend knows.",
)
SWAPPED = _fact(
    "scaled.swapped",
    "stablehlo.dot_general jax.ragged_dot_general",
    "unit",
    _ALL,
    "The op multiplies the operands of that product in the other order.",
)
BODIES = _fact(
    "scaled.bodies",
    "op",
    "symbols",
    _ALL,
    "The private functions that the op runs. The operands and results that a pass adds come last, for all of them.",
)
TRIPS = _fact(
    "scaled.trips",
    "op argument",
    "integer",
    _ALL,
    "How often the op runs its body. Operands and results that a pass adds have a first dim of this size; so has a "
    "weight that it is on.",
)
TRAINED = _fact(
    "scaled.trained",
    "function",
    "unit",
    _ALL,
    "The function is a body of a forward that has a backward: amaxes are recorded.",
)

HIGH_PRECISION = _fact("scaled.high_precision", "op", "string", _ALL[1:], "Why the op stays in high precision.")
DELAYED = _fact(
    "scaled.delayed",
    "scaled.matmul scaled.grouped_matmul",
    "dictionary",
    _ALL[2:5],
    "How the delayed scales of its operands are updated.",
)
DECODED = _fact(
    "scaled.decoded", "scaled.matmul", "scheme", _ALL[2:5], "Its rhs is what this scheme quantizes, decoded again."
)
REDUCE = _fact("scaled.reduce", "scaled.update_scale", "unit", _ALL[2:5], "The amax is the largest over all ranks.")
LAYER = _fact(
    "scaled.layer", "scaled.update_scale", "string", _ALL[2:5], "The layer whose own algorithm picks the amax."
)

PATH = _fact("scaled.path", "scaled.gemm", "string", (), "How a GPU runs a legalized GEMM: `native` or `emulated`.")
REASON = _fact("scaled.reason", "scaled.gemm", "string", (), "Why it is emulated.")

KERNEL = _fact("scaled.kernel", "kernel", "string", _ALL[5:], "The operation that calls of the declaration run.")
DEVICE = _fact(
    "scaled.device", "kernel", "string", _ALL[5:], "Whose kernel runs it: `cpu`, `cuda`, or `custom` for a user's own."
)
CONFIG = _fact("scaled.config", "kernel", "dictionary", _ALL[5:], "How the kernel is set.")
OPERANDS = _fact("scaled.operands", "kernel", "strings", _ALL[5:], "What each operand of a call is.")
RESULTS = _fact("scaled.results", "kernel", "strings", _ALL[5:], "What each result of a call is.")
DESTINATIONS = _fact(
    "scaled.destinations", "kernel", "unit", _ALL[5:], "Calls write their results into memory that they are given."
)
PLAN = _fact(
    "scaled.plan", "builtin.module", "symbol", _ALL[5:], "The declared kernel whose calls take the module's steps."
)
CODE = _fact("scaled.code", "gpu.module", "dictionary", _ALL[5:], "The kernel whose code it holds, or is to hold.")

ARENA = _fact("scaled.arena", "function", "integer", _ALL[5:], "Bytes of the memory that the function's calls share.")
OFFSETS = _fact("scaled.offsets", "call", "integers", _ALL[5:], "Where in that memory each result of the call lies.")
TAPE = _fact("scaled.tape", "op call", "integer", _ALL[5:], "Which of the function's tapes the op is a step of.")
ELSEWHERE = -1
"""An offset of a result that has memory of its own."""

RNG = "rng"
"""The name of the state that random bits come from."""
