"""What a checkpoint says about its layers, as plain data: which tensors a weight consists of, and what meets it."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from steelyard.checkpoints.catalog import Catalog, Entry
from steelyard.errors import CheckpointError, shown
from steelyard.formats.parts import gemm_scales_shape, scales_shape
from steelyard.formats.schemes import Scheme
from steelyard.recipes import (
    Float8BlockScaling,
    Float8CurrentScaling,
    Float8RowScaling,
    MXFP4BlockScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    Recipe,
)

FP8_TENSOR = Scheme("f8E4M3FN", "tensor", "f32")
FP8_ROW = Scheme("f8E4M3FN", "row", "f32")
FP8_GROUP = Scheme("f8E4M3FN", "1x128", "f32")
FP8_TILE = Scheme("f8E4M3FN", "128x128", "f32")
MXFP8 = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
MXFP4 = Scheme("f4E2M1FN", "1x32", "f8E8M0FNU", rule="even")
NVFP4 = Scheme("f4E2M1FN", "1x16", "f8E4M3FN", source="static", second_level="tensor")
"""Its second level is what decoded values are multiplied by."""
NVFP4_DIVIDED = replace(NVFP4, source="divisor")
"""Its second level is what decoded values are divided by."""
NVFP4_WIDE = replace(NVFP4, block="1x32")

DYNAMIC: dict[str, Recipe] = {
    "tensor": Float8CurrentScaling(fp8_format="E4M3"),
    "row": Float8RowScaling(fp8_format="E4M3"),
    "group": Float8BlockScaling(power_of_two=False),
    "group-power-of-two": Float8BlockScaling(),
    "mxfp8": MXFP8BlockScaling(),
    "mxfp4": MXFP4BlockScaling(scale_rule="even"),
    "nvfp4": NVFP4BlockScaling(weight_tiles=False),
}
"""Recipes by what they do to inputs. Weights are as they are stored."""


ROWS = "rows"
"""Codes [..., N, K or K/2] and compact scales."""
BLOCKS = "blocks"
"""gpt-oss: codes [E, N, K/32, 16]. The model's own parameter is the transpose, [E, K, N]."""
TRANSPOSED = "transposed"
"""Experts of ModelOpt and FBGEMM: codes [E, K or K/2, N] and scales [E, K/16, N], for instance, or one for all of them.
The model's own parameter is [E, K, N]."""
SWIZZLED = "swizzled"
"""torchao: codes of a matrix, and scales in the order that GPU GEMMs read, [32 * ceil(N/128), 16 * ceil(K/16/4)]."""


@dataclass(frozen=True)
class StoredWeight:
    """A quantized weight: the tensors that it consists of."""

    name: str
    """What the weight would be called if it were not quantized."""
    scheme: Scheme
    shape: tuple[int, ...]
    """The matrix [N, K], or a stack of them [E, N, K]."""
    codes: Entry
    scales: Entry
    second_level: Entry | None = None
    """None also if the format has one and the checkpoint does not: then it is 1."""
    arrangement: str = ROWS

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All tensors of the weight."""
        every = (self.codes, self.scales, self.second_level)
        return tuple(entry for entry in every if entry is not None)


@dataclass(frozen=True)
class LayerInput:
    """How the input of a layer is quantized."""

    recipe: Recipe | None
    """What quantizes it; None: nothing does."""
    scale: Entry | None = None
    """A static scale: what decoded values are multiplied by."""
    is_divisor: bool = False
    """The static scale is what they are divided by."""
    factor: Entry | None = None
    """What each column is multiplied by before, `pre_quant_scale`."""
    bound: float | None = None
    """The largest magnitude: larger values become it before."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All tensors that say how the input is quantized."""
        return tuple(entry for entry in (self.scale, self.factor) if entry is not None)


@dataclass
class Plan:
    """What a checkpoint holds. Names are those of the checkpoint."""

    method: str
    """How its config calls the format."""
    weights: dict[str, StoredWeight] = field(default_factory=dict)
    """By the names that they would have if they were not quantized."""
    inputs: dict[str, LayerInput] = field(default_factory=dict)
    """By layers: the name of a weight without `.weight`."""
    kv_cache: str | None = None
    """As for `steelyard.compile`."""
    kv_scales: dict[str, tuple[Entry, Entry]] = field(default_factory=dict)
    """Static scales of cached keys and values, by attention; they are among what is kept."""
    kept: dict[str, Entry] = field(default_factory=dict)
    """Tensors beside weights and inputs, such as scales of KV caches; they are saved as they came."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Plain tensors that have another name in the checkpoint than in files of transformers: that name by theirs."""
    odd: list[str] = field(default_factory=list)
    """What a reader should know, a sentence each."""
    not_run: list[str] = field(default_factory=list)
    """What the checkpoint asks for and a net of it leaves out, a sentence each."""

    def add(self, weight: StoredWeight, layer_input: LayerInput) -> None:
        """Note a quantized layer."""
        self.weights[weight.name] = weight
        self.inputs[layer_of(weight.name)] = layer_input

    def used(self) -> set[str]:
        """The tensors that the plan speaks of."""
        owners: list[Iterable[Entry]] = [each.entries for each in (*self.weights.values(), *self.inputs.values())]
        return {entry.name for entries in owners for entry in entries} | set(self.kept)


def layer_of(weight: str) -> str:
    """The layer of a weight: experts in one tensor have the name of the tensor."""
    return weight.removesuffix(".weight")


def make_weight(
    name: str,
    scheme: Scheme,
    codes: Entry,
    scales: Entry,
    second_level: Entry | None = None,
    *,
    arrangement: str = ROWS,
) -> StoredWeight:
    """A weight of these tensors, if they have the shapes and dtypes of its format."""
    is_fp4 = scheme.element == "f4E2M1FN"
    require_dtype(codes, *(("U8", "I8", "F4") if is_fp4 else ("F8_E4M3",)))
    require_dtype(scales, *_SCALE_DTYPES[scheme.scale])
    if scheme.scale == "f32" and scales.dtype in ("U8", "F8_E8M0") and scheme.family != "block":
        require_dtype(scales, *_FLOATS)
    shape = _matrix_shape(codes, arrangement)
    shape = (*shape[:-1], 2 * shape[-1]) if is_fp4 else shape
    *stack, rows, columns = shape
    if arrangement == SWIZZLED and (stack or scheme.scale == "f32"):
        raise CheckpointError(f"swizzled scales must be those of a matrix in MX or NVFP4, got {codes.place}")
    compact = scales_shape(scheme, (rows, columns), False)
    require_shape(scales, *_spellings(tuple(stack), compact, arrangement, scheme))
    if second_level is not None:
        require_dtype(second_level, "F32")
        require_shape(second_level, *_spellings(tuple(stack), (), ROWS, scheme), ())
    return StoredWeight(name, scheme, shape, codes, scales, second_level, arrangement)


_FLOATS = ("F32", "BF16", "F16")
_SCALE_DTYPES = {"f32": (*_FLOATS, "F8_E8M0"), "f8E8M0FNU": ("U8", "F8_E8M0"), "f8E4M3FN": ("F8_E4M3",)}


def _matrix_shape(codes: Entry, arrangement: str) -> tuple[int, ...]:
    """The shape of the codes as rows, stacked or not."""
    if arrangement == BLOCKS:
        if len(codes.shape) != 4:
            raise CheckpointError(f"{codes.place} must have 4 dims, [E, N, K/32, 16], got {list(codes.shape)}")
        experts, rows, blocks, size = codes.shape
        return experts, rows, blocks * size
    if len(codes.shape) not in (2, 3):
        raise CheckpointError(f"{codes.place} must be a matrix or a stack of them, got shape {list(codes.shape)}")
    *stack, rows, columns = codes.shape
    return (*stack, columns, rows) if arrangement == TRANSPOSED else codes.shape


def _spellings(
    stack: tuple[int, ...], compact: tuple[int, ...], arrangement: str, scheme: Scheme
) -> list[tuple[int, ...]]:
    """The shapes in which files hold scales of this compact shape."""
    if arrangement == TRANSPOSED:
        # One scale for all experts; or, where scales have one column, these as they are.
        more = [()] if not compact else [(*stack, *compact)] if scheme.family == "row" else []
        return [(*stack, *compact[::-1]), *more]
    if arrangement == SWIZZLED:
        lines, groups = gemm_scales_shape(scheme, compact, False)
        return [(lines // 4, groups * 4)]
    found = [(*stack, *compact)]
    if not compact:
        found += [(*stack, 1), (*stack, 1, 1)]
    elif scheme.family == "row":
        found.append((*stack, compact[0]))
    elif scheme.family == "block":
        found.append((*stack, compact[0], 1, compact[1], 1))
    if scheme.family == "block" and set(compact) == {1}:
        found.append(stack)
    return found


def require_shape(entry: Entry, *shapes: tuple[int, ...]) -> Entry:
    """An entry, if it has one of these shapes."""
    if entry.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise CheckpointError(f"{entry.place} must have shape {wanted}, got {list(entry.shape)}; fetch it again")
    return entry


def require_dtype(entry: Entry, *dtypes: str) -> Entry:
    """An entry, if it has one of these dtypes, as safetensors spells them."""
    if entry.dtype not in dtypes:
        raise CheckpointError(f"{entry.place} must be {' or '.join(dtypes)}, got {entry.dtype}; fetch it again")
    return entry


def read_object(value: Any, key: str) -> dict[str, Any]:
    """The object that a config has under a key; an empty one if it has no such key."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{key} in config.json must be an object, got {shown(value)}; fetch it again")
    return value


def read_bound(value: Any, key: str) -> float:
    """The largest magnitude of inputs that a checkpoint gives."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # An integer of JSON may be larger than any float.
    if not is_number or not 0 < value <= sys.float_info.max:
        raise CheckpointError(f"{key} must be a positive number, got {shown(value)}")
    return float(value)


def refuse(what: str, catalog: Catalog, instead: str) -> CheckpointError:
    """The error for a format that cannot be run."""
    return CheckpointError(f"'{catalog.folder}' has {what}, which Steelyard does not run; {instead}")
