"""What `net.measure` and `net.attribute` return: plain data, which JSON keeps.

`docs/insight.md` documents the fields as the schema of the JSON. A number that JSON has no word for is a text there:
"nan", "inf" or "-inf". `version` grows once a field goes, or means something else.
"""

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Self

from steelyard.errors import FileError, ResultError, shown
from steelyard.files import write_file

VERSION = 1


class Result:
    """What results have in common: each is a dataclass, and a dict of plain values."""

    def to_dict(self) -> dict[str, Any]:
        """Every field, of values that JSON has; of a whole result also the version."""
        return _plain(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The result from what `to_dict` gives."""
        return _read(cls, values, cls.__name__)

    def to_json(self) -> str:
        """The result as JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The result from what `to_json` gives."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ResultError(f"{cls.__name__} must be JSON text: {error}") from None
        return cls.from_dict(values)

    def save(self, path: str | Path) -> Path:
        """Write the JSON text to a file, and return its path."""
        path = Path(path)
        write_file(path, self.to_json().encode())
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The result from a file that `save` wrote."""
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"{path} cannot be read: {error}") from error
        return cls.from_json(text)


@dataclass
class OperandMeasurement(Result):
    """What quantizing did to one operand of a GEMM, over all calls."""

    role: str
    """`input`, `weight` or `grad_output`."""
    usage: str
    """`row` or `col`: which of its two copies the GEMM reads."""
    scheme: str
    """How it is quantized, as the IR spells it; empty where it stays in high precision."""
    elements: int
    """How many values were quantized; a weight counts once per call, too."""
    snr_db: float | None
    """10 log10 of the sum of squares of the values over that of their errors; inf where there is no error."""
    relative_error: float | None
    """The root of the sum of squares of the errors over that of the values."""
    saturated_share: float
    """Of the elements, those whose magnitude is above the largest that their scale can express, by more than 2^-20 of
    it. Infinities are among them; values whose scale is 0 are not: they are flushed."""
    flushed_share: float
    """Of the elements, those that are not zero and whose decoded value is."""
    unused_codes_share: float
    """Of the codes of the format that are finite values, those that no element has."""
    code_histogram: list[int]
    """How many elements have each code, by code: 256 numbers for 8 bits, 16 for 4."""
    scale_histogram: list[list[float]]
    """`[value, count]`: how many scales, by which codes are multiplied, are from value, a power of two, to below twice
    that; value is 0 for scales that are 0, and NaN for those that are not finite."""
    amax: float
    """The largest magnitude of all calls; NaN if a value was NaN."""
    amax_history: list[float]
    """The largest magnitude of each call, the newest last."""
    nan_count: int
    inf_count: int
    scale: float | None = None
    """The geometric mean of the scales that are finite and not 0; of one scale per tensor and call, that scale."""


@dataclass
class GradientMeasurement(Result):
    """The gradient that a GEMM computes, beside the same in high precision.

    A wgrad computes the gradient of a weight, a dgrad that of an input.
    """

    cosine: float | None
    """Between the gradient and the same product in high precision, over all calls; None if one of them is zero."""
    relative_error: float | None
    """The norm of the difference over the norm in high precision."""
    norm: float
    """The root of the sum of squares of the gradient, over all calls."""
    underflow_share: float
    """Of the elements, those that are zero here and not in high precision."""


@dataclass
class GemmMeasurement(Result):
    """One GEMM of a program, over all calls."""

    layer: str
    kind: str
    """`fprop`, `dgrad` or `wgrad`."""
    source_line: str
    """Where the model's code calls it, as `file:line`; empty where that is not known."""
    graph: int
    """Which of the net's graphs it is in, from 0."""
    calls: int
    """How often it was measured."""
    shape: list[int]
    """M, N and K of its last call, of all experts if there are several."""
    flops: int
    """Of its last call: two for each multiplication and addition."""
    kernel: str
    """What runs it, as `explain()` calls it."""
    formats: str
    """The formats of both operands, as `explain()` calls them."""
    reason: str
    """Why it stays in high precision; empty otherwise."""
    operands: list[OperandMeasurement]
    relative_error: float | None
    """Of the result, before bias and epilogue, against the same product of the same operands in high precision."""
    snr_db: float | None
    max_error: float | None
    """The largest magnitude of an error of the result."""
    gradient: GradientMeasurement | None
    """For dgrad and wgrad."""
    number: int = 0
    """Which of the GEMMs of its layer and kind in this graph, from 0: a layer may be called several times."""


@dataclass
class OutputError(Result):
    """What the whole model returns, beside what it returns in float32; None for what is not known."""

    relative_error: float | None
    snr_db: float | None
    kl_divergence: float | None
    """The mean over positions of KL(float32 || quantized), in nats, where the output is logits."""
    loss: float | None
    loss_high_precision: float | None
    loss_difference: float | None


@dataclass
class ParameterGradient(Result):
    """The gradient of a parameter beside that of the whole model in float32, over all batches."""

    parameter: str
    cosine: float | None
    """Between both; None if one of them is zero."""
    relative_error: float | None
    """The norm of the difference over the norm in float32."""
    norm: float
    """The root of the sum of squares of the gradient."""
    norm_high_precision: float


@dataclass
class Measurement(Result):
    """What `net.measure` found."""

    model: str
    """The name of the model's class."""
    recipe: str
    steps: int
    """How many calls of the net were measured."""
    rows: list[GemmMeasurement]
    output: OutputError | None
    gradients: list[ParameterGradient] = field(default_factory=list)
    """Of each parameter, where the backward of the model ran, too."""
    version: int = field(default=VERSION, kw_only=True)


@dataclass
class LayerAttribution(Result):
    """What one layer adds to the error of the whole model."""

    layer: str
    only_error: float | None
    """The error with this layer quantized and all others in high precision; None if it did not run alone."""
    without_error: float | None
    """The error with all layers quantized but this one."""
    estimated_error: float | None
    """What one backward predicts for `only_error`."""


@dataclass
class Attribution(Result):
    """What `net.attribute` found: the error is the KL divergence if the output is logits, else the relative error."""

    recipe: str
    batches: int
    rows: list[LayerAttribution]
    baseline_error: float | None
    """The error with every layer quantized."""
    estimate_agreement: float | None
    """The rank correlation of `estimated_error` and `only_error`; None for less than two layers."""
    error: str = "relative_error"
    """Which error it is: `kl_divergence` or `relative_error`."""
    version: int = field(default=VERSION, kw_only=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}  # pyright: ignore[reportArgumentType]
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _read(kind: Any, value: Any, where: str) -> Any:
    """A plain value as what a type hint says."""
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        inner = next(one for one in typing.get_args(kind) if one is not types.NoneType)
        return None if value is None else _read(inner, value, where)
    if origin is list and isinstance(value, list):
        inner = typing.get_args(kind)[0]
        return [_read(inner, item, f"{where}[{number}]") for number, item in enumerate(value)]
    if is_dataclass(kind) and isinstance(value, Mapping):
        return _read_fields(kind, value, where)
    if kind is float and (value in ("nan", "inf", "-inf") or type(value) is int):
        return float(value)
    if type(value) is kind:
        return value
    raise ResultError(f"{where} must be {getattr(kind, '__name__', kind)}, got {shown(value)}")


def _read_fields(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(kind)
    known = {each.name for each in fields(kind)}
    needed = {each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING}
    if values.get("version", VERSION) != VERSION:
        raise ResultError(f"{where}.version must be {VERSION}, got {shown(values['version'])}; measure again")
    unknown, missing = sorted(values.keys() - known), sorted(needed - values.keys())
    if unknown or missing:
        found = f"no field {missing[0]}" if missing else f"a field {unknown[0]}"
        raise ResultError(f"{where} must have the fields {', '.join(sorted(known))}, got {found}")
    return kind(**{name: _read(hints[name], value, f"{where}.{name}") for name, value in values.items()})
