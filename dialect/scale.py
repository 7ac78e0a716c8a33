"""Scales and the state they and the random bits come from: `amax`, `update_scale`, `count_saturated`, `advance_rng`."""

from typing import Any, Literal, get_args

from torch_mlir import ir
from torch_mlir.dialects import ext

from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.base import ScaledOp, attribute_of, build, require, string_attribute
from steelyard.dialect.types import TensorInfo, float_info, format_shape, require_tensor, tensor_info
from steelyard.formats.schemes import Scheme

Algorithm = Literal["max", "most_recent", "custom"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


class AmaxOp(ScaledOp, name="amax", traits=[ext.Pure]):
    """The largest magnitude of a tensor, or of each of its rows. It is NaN if an element is.

    Constraints:
    - amax_c1: source is a ranked tensor of f32, bf16 or f16
    - amax_c2: per_row and rht, the amax after the random Hadamard transform of the columns, exclude each other
    - amax_c3: result is an f32 scalar or, where per_row is true, f32 with the source's shape without its last dim
    """

    assembly_format = "$source [per_row] [rht]"

    source: ext.Operand[Any]
    result: ext.Result[Any]
    per_row: Any
    rht: Any

    def check(self) -> None:
        source = float_info(self.source, "amax_c1", "source")
        per_row, rht = (attribute_of(self, name, ir.BoolAttr).value for name in ("per_row", "rht"))
        require(not (per_row and rht), "amax_c2", "per_row and rht exclude each other, got both")
        require_tensor(self.result, _amax_info(source, per_row), "amax_c3", "result")


def amax(
    source: ir.Value,
    *,
    per_row: bool = False,
    rht: bool = False,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> AmaxOp:
    """Build a `scaled.amax`."""
    result = _amax_info(float_info(source, "amax_c1", "source"), per_row)
    attributes = {"per_row": ir.BoolAttr.get(per_row), "rht": ir.BoolAttr.get(rht)}
    return build(AmaxOp, [source], [result.type()], attributes, loc, ip)


class UpdateScaleOp(ScaledOp, name="update_scale", traits=[ext.Pure]):
    """One step of delayed scaling: record an amax in the newest slot of the history, then update scale and history.

    Experts, and layers in loops, have a scale each, and a column of the history: each is updated by itself, and an
    expert whose amax is 0 keeps both.

    Constraints:
    - update_scale_c1: scheme has a delayed scale
    - update_scale_c2: scale, amax and new_scale are f32 scalars, or f32 for each trip of loops and each expert
    - update_scale_c3: history and new_history are f32 of one length, at least 1, and then of the dims of scale
    - update_scale_c4: algorithm is max, most_recent or custom, which is a function of the user's
    """

    assembly_format = "$scale, $history, $amax for $scheme [algorithm($algorithm = max)] [margin($margin = 0)]"

    scale: ext.Operand[Any]
    history: ext.Operand[Any]
    amax: ext.Operand[Any]
    new_scale: ext.Result[Any]
    new_history: ext.Result[Any]
    scheme: SchemeAttr
    margin: ir.IntegerAttr
    algorithm: ir.StringAttr

    def check(self) -> None:
        source = self.scheme.scheme.source
        require(source == "delayed", "update_scale_c1", f"scheme must have a delayed scale, got a {source} one")
        scale = _scales_beside(self.scale)
        for name in ("scale", "amax", "new_scale"):
            require_tensor(getattr(self, name), scale, "update_scale_c2", name)
        history = tensor_info(self.history.type)
        length = history.shape[:1] if history is not None else ()
        wanted = "at least 1 slot long" + (f", with {scale.shape[0]} columns" if scale.shape else "")
        require(length not in ((), (0,)), "update_scale_c3", f"history must be {wanted}, got {self.history.type}")
        for name in ("history", "new_history"):
            require_tensor(getattr(self, name), scale.with_((*length, *scale.shape)), "update_scale_c3", name)
        string_attribute(self, "algorithm", ALGORITHMS, "update_scale_c4")


def update_scale(
    scale: ir.Value,
    history: ir.Value,
    amax: ir.Value,
    scheme: Scheme,
    *,
    margin: int = 0,
    algorithm: str = "max",
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> UpdateScaleOp:
    """Build a `scaled.update_scale`."""
    attributes = {
        "scheme": SchemeAttr.from_scheme(scheme),
        "margin": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), margin),
        "algorithm": ir.StringAttr.get(algorithm),
    }
    return build(UpdateScaleOp, [scale, history, amax], [scale.type, history.type], attributes, loc, ip)


class CountSaturatedOp(ScaledOp, name="count_saturated", traits=[ext.Pure]):
    """A count plus the number of values of a tensor that are too large for a static scale, and saturate.

    Those are the values whose magnitude, after the encoding factor `1 / scale`, is above the largest code, and for FP4
    above the largest code times the largest block scale. NaN is none of them. A matrix whose rows are in groups has the
    `ends` of these groups; rows behind the last one are not counted.

    Constraints:
    - count_saturated_c1: source is a ranked tensor of f32, bf16 or f16
    - count_saturated_c2: scheme has a static scale
    - count_saturated_c3: scale is an f32 scalar
    - count_saturated_c4: count and result are a 64-bit integer
    - count_saturated_c5: ends, a 32-bit integer for each group, are those of a matrix
    """

    assembly_format = "$source, $scale, $count [ends($ends)] for $scheme"

    source: ext.Operand[Any]
    scale: ext.Operand[Any]
    count: ext.Operand[Any]
    result: ext.Result[Any]
    scheme: SchemeAttr
    ends: ext.Operand[Any] | None = None

    def check(self) -> None:
        info = float_info(self.source, "count_saturated_c1", "source")
        scheme = self.scheme.scheme
        message = f"scheme must have a static scale, got a {scheme.source} one"
        require(scheme.is_static, "count_saturated_c2", message)
        require_tensor(self.scale, info.with_((), "f32"), "count_saturated_c3", "scale")
        for name in ("count", "result"):
            require_tensor(getattr(self, name), info.counter(), "count_saturated_c4", name)
        if self.ends is not None:
            found = format_shape(info.shape)
            require(len(info.shape) == 2, "count_saturated_c5", f"source must be a matrix to have ends, got {found}")
            require_tensor(self.ends, info.group_ends(None), "count_saturated_c5", "ends")


def count_saturated(
    source: ir.Value,
    scale: ir.Value,
    count: ir.Value,
    scheme: Scheme,
    *,
    ends: ir.Value | None = None,
    loc: ir.Location | None = None,
    ip: ir.InsertionPoint | None = None,
) -> CountSaturatedOp:
    """Build a `scaled.count_saturated`."""
    attributes = {"scheme": SchemeAttr.from_scheme(scheme)}
    return build(CountSaturatedOp, [source, scale, count, ends], [count.type], attributes, loc, ip)


class AdvanceRngOp(ScaledOp, name="advance_rng", traits=[ext.Pure]):
    """The random state of the next backward: the same seed, the offset plus one.

    Constraints:
    - advance_rng_c1: rng and result are two 64-bit integers
    """

    assembly_format = "$rng"

    rng: ext.Operand[Any]
    result: ext.Result[Any]

    def check(self) -> None:
        info = tensor_info(self.rng.type)
        require(info is not None, "advance_rng_c1", f"rng must be a tensor of two 64-bit integers, got {self.rng.type}")
        assert info is not None
        require_tensor(self.rng, info.random_state(), "advance_rng_c1", "rng")
        require_tensor(self.result, info.random_state(), "advance_rng_c1", "result")


def advance_rng(rng: ir.Value, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None) -> AdvanceRngOp:
    """Build a `scaled.advance_rng`."""
    return build(AdvanceRngOp, [rng], [rng.type], {}, loc, ip)


def _amax_info(source: TensorInfo, per_row: bool) -> TensorInfo:
    return source.with_(source.shape[:-1] if per_row else (), "f32")


def _scales_beside(value: ir.Value) -> TensorInfo:
    """What a scale must be: a scalar, or where its sizes are known one for each trip of loops and each expert."""
    info = tensor_info(value.type)
    if info is None:
        return TensorInfo("builtin", (), "f32")
    return info.with_(() if None in info.shape else info.shape, "f32")
