"""Which GEMMs a target runs in low precision, what must be inserted before them, and how the others run.

`steelyard targets` prints this, and `scaled-legalize` reads it. Native GEMMs call `torch.nn.functional.scaled_mm`,
which takes rows of A and columns of B that are contiguous along the reduction.
"""

from dataclasses import dataclass, replace

from steelyard.formats.gemms import OPERAND_ROLES, reads_columnwise
from steelyard.formats.schemes import Scheme
from steelyard.targets.architectures import Target, Version

NATIVE, EMULATED, HIGH_PRECISION, CUSTOM = "native", "emulated", "high precision", "custom"
# torch requires this multiple of the rows of B and of FP8 reductions, but not of the rows of A.
_MULTIPLE = 16
# The cuBLASLt that torch asks for: it was built for no older one, and runs with none.
_FIRST_WITH_BLOCK_FORMATS, _FIRST_WITH_128_SCALES = (12, 8), (12, 9)
_WITH_128_SCALES = "sm_90a"
_OUTSIDE_SUMS = {"tensor", "row"}
"""Families whose scales can be applied after the sum."""


@dataclass(frozen=True)
class GemmPath:
    """How a GEMM runs on a target.

    Emulated: quantized as the recipe says, decoded and multiplied by torch, within the same error bound.
    High precision: not quantized. Custom: multiplied by the user's own quantizer.
    """

    path: str
    reason: str
    steps: tuple[str, ...] = ()
    """What is inserted before it if sizes or usages need it: `pad`, `turn`, `swizzle`."""
    multiples: tuple[int, int, int] = (1, 1, 1)
    """The multiples to which rows of lhs, rows of rhs and the reduction are padded."""


def gemm_path(kind: str, lhs: Scheme | None, rhs: Scheme | None, target: Target) -> GemmPath:
    """How a GEMM of this kind runs if its operands have these schemes."""
    if rhs is None or (lhs is None and kind == "wgrad"):
        return GemmPath(HIGH_PRECISION, "the recipe leaves an operand in high precision")
    families = {"" if lhs is None else lhs.family, rhs.family}
    if families == {"custom"}:
        return GemmPath(CUSTOM, "a user's own quantizer multiplies")
    if "custom" in families:
        return GemmPath(HIGH_PRECISION, "a user's own format has no product on this target")
    if lhs is None:
        return GemmPath(EMULATED, "torch has no product of a quantized weight and activations that are not quantized")
    if lhs.element == rhs.element == "f8E5M2":
        return GemmPath(EMULATED, "cuBLASLt refuses E5M2 times E5M2")
    if families <= _OUTSIDE_SUMS:
        return _scaled_after_sums(families)
    if len(families) > 1:
        return GemmPath(EMULATED, f"torch has no product of {' and '.join(sorted(families))} operands")
    by_family = {"block": _per_block, "mx": _mx, "mxfp4": _mxfp4, "nvfp4": _nvfp4}
    return by_family[lhs.family](kind, lhs, rhs, target)


def _scaled_after_sums(families: set[str]) -> GemmPath:
    """FP8 whose scales are the same for all that is summed: a scale of the tensor, or of the row."""
    scales = "a scale per tensor" if families == {"tensor"} else "a scale per row"
    return GemmPath(NATIVE, f"FP8 with {scales}", ("pad",), (1, _MULTIPLE, _MULTIPLE))


def _per_block(_kind: str, lhs: Scheme, rhs: Scheme, target: Target) -> GemmPath:
    if lhs.block == rhs.block == "128x128":
        return GemmPath(EMULATED, "cuBLASLt has no product of two operands in 128x128 tiles")
    if target.name != _WITH_128_SCALES:
        return GemmPath(EMULATED, "torch has 1x128 and 128x128 scales on sm_90 only")
    if "f8E5M2" in (lhs.element, rhs.element):
        return GemmPath(EMULATED, "torch multiplies E4M3 only with 1x128 and 128x128 scales")
    if target.lacks(_FIRST_WITH_128_SCALES):
        return GemmPath(EMULATED, _too_old("1x128 and 128x128 scales need", _FIRST_WITH_128_SCALES, target))
    # torch wants the scales of A's rows without padding between columns; cuBLASLt reads them as whole vectors.
    rows = [128 if scheme.block == "128x128" else _MULTIPLE for scheme in (lhs, rhs)]
    return GemmPath(NATIVE, "FP8 with 1x128 and 128x128 scales", ("pad", "swizzle"), (rows[0], rows[1], 128))


def _mx(kind: str, lhs: Scheme, rhs: Scheme, target: Target) -> GemmPath:
    if not target.has_block_formats:
        return GemmPath(EMULATED, "tensor cores read MX scales from sm_100 on")
    if "f8E5M2" in (lhs.element, rhs.element):
        return GemmPath(EMULATED, "torch multiplies E4M3 only with MX scales")
    if target.lacks(_FIRST_WITH_BLOCK_FORMATS):
        return GemmPath(EMULATED, _too_old("MX scales need", _FIRST_WITH_BLOCK_FORMATS, target))
    # A columnwise MX copy is stored untransposed, across the reduction.
    turned = ("turn",) if any(reads_columnwise(kind)) else ()
    return GemmPath(NATIVE, "MXFP8", ("pad", *turned, "swizzle"), (1, _MULTIPLE, 32))


def _mxfp4(_kind: str, _lhs: Scheme, _rhs: Scheme, target: Target) -> GemmPath:
    if not target.has_block_formats:
        return GemmPath(EMULATED, "tensor cores read FP4 from sm_100 on")
    # A kernel of another library, in bf16 only, which wheels may come without.
    return GemmPath(EMULATED, "not every build of torch has a product of MXFP4 operands")


def _nvfp4(_kind: str, lhs: Scheme, rhs: Scheme, target: Target) -> GemmPath:
    if not target.has_block_formats:
        return GemmPath(EMULATED, "tensor cores read FP4 from sm_100 on")
    if "row" in (lhs.second_level, rhs.second_level):
        return GemmPath(EMULATED, "cuBLASLt takes one second-level scale per tensor, not one per row")
    if "1x32" in (lhs.block, rhs.block):
        return GemmPath(EMULATED, "cuBLASLt reads one E4M3 scale for 16 values of FP4, not for 32")
    if target.lacks(_FIRST_WITH_BLOCK_FORMATS):
        return GemmPath(EMULATED, _too_old("FP4 needs", _FIRST_WITH_BLOCK_FORMATS, target))
    return GemmPath(NATIVE, "NVFP4", ("pad", "swizzle"), (1, _MULTIPLE, 32))


def _too_old(what: str, needed: Version, target: Target) -> str:
    assert target.cublaslt is not None
    return "{} cuBLASLt {}.{} or newer, and torch has {}.{}".format(what, *needed, *target.cublaslt)


def emulated_dtype(lhs: Scheme | str, rhs: Scheme, *, batched: bool = False) -> str:
    """What an emulated GEMM multiplies: bf16 where both operands are exact in it, else f32. A plain lhs is its dtype.

    Scales of tensors and rows are left for the sums. Codes times the byte of a block's scale have few enough bits; with
    a float32 scale of a block they have not.
    """
    fits = [side == "bf16" if isinstance(side, str) else side.family != "block" for side in (lhs, rhs)]
    return "bf16" if all(fits) and not batched else "f32"


_AT_ONCE = (9, 10)
"""Majors of the compute capabilities with which torch multiplies groups of bf16 by one kernel. With others it reads
where they end, and multiplies one by one."""
_WITH_FP8_GROUPS, _WITH_BLOCK_GROUPS = "sm_90a", "sm_100a"
_GROUPED_FORMATS = {"tensor": "FP8", "row": "FP8", "mx": "MXFP8", "mxfp4": "MXFP4", "nvfp4": "NVFP4"}
_MOST_GROUPS = 1023
_ONE_BY_ONE = "the host reads where groups end and multiplies one by one"
Widths = tuple[int | None, int | None, int | None]


def grouped_gemm_path(
    kind: str, lhs: Scheme | None, rhs: Scheme, target: Target, *, result: str, widths: Widths, groups: int
) -> GemmPath:
    """How the products of experts run with a result of this dtype. `widths`: the columns of both operands and of it."""
    reason = _reason_against_groups(kind, lhs, rhs, target) or _reason_against_sizes(rhs, result, widths, groups)
    if not reason:
        scales = " with a scale per row or per group" if rhs.family in _OUTSIDE_SUMS else ""
        return GemmPath(NATIVE, f"{_GROUPED_FORMATS[rhs.family]}{scales}")
    # A plain lhs has the dtype of the result.
    at_once = multiplies_groups_at_once(result if lhs is None else lhs, rhs, result)
    fits = all(width is not None and width % 8 == 0 for width in widths[:2])
    if at_once and fits and target.capability[0] in _AT_ONCE:
        return GemmPath(EMULATED, reason)
    return GemmPath(EMULATED, f"{reason}; {_ONE_BY_ONE}")


def _reason_against_groups(kind: str, lhs: Scheme | None, rhs: Scheme, target: Target) -> str:
    """Why torch has no product of groups in these formats; empty if it has."""
    if lhs is None:
        return "torch has no product of a quantized weight and activations that are not quantized"
    families = {lhs.family, rhs.family}
    if families <= _OUTSIDE_SUMS:
        name, has_kernels, rows = "FP8", target.name == _WITH_FP8_GROUPS, 16
    elif len(families) == 1 and rhs.family in _GROUPED_FORMATS:
        name, has_kernels, rows = _GROUPED_FORMATS[rhs.family], target.name == _WITH_BLOCK_GROUPS, 32
    else:
        return f"torch has no product of groups of {' and '.join(sorted(families))} operands"
    if not has_kernels:
        return f"torch has products of groups in {name} on {'sm_90' if name == 'FP8' else 'sm_100'} only"
    if kind == "wgrad":
        return f"torch's product of groups in {name} reduces over multiples of {rows} rows, and experts have any number"
    if "f8E5M2" in (lhs.element, rhs.element):
        return f"torch's product of groups in {name} multiplies E4M3 only"
    return "" if name == "FP8" else _reason_against_block_groups(lhs, rhs, target)


def _reason_against_block_groups(lhs: Scheme, rhs: Scheme, target: Target) -> str:
    name = _GROUPED_FORMATS[rhs.family]
    if not target.has_mslk:
        return f"this build of torch has no products of groups in {name}: it was built without MSLK"
    if "row" in (lhs.second_level, rhs.second_level):
        return "torch's product of groups in NVFP4 takes one second-level scale per group, not one per row"
    if name == "NVFP4" and "1x32" in (lhs.block, rhs.block):
        return "torch's product of groups reads one E4M3 scale for 16 values of FP4, not for 32"
    return ""


def _reason_against_sizes(rhs: Scheme, result: str, widths: Widths, groups: int) -> str:
    name = _GROUPED_FORMATS[rhs.family]
    if result != "bf16":
        return f"torch's product of groups in {name} has results in bf16 only"
    if any(not width or width % _MULTIPLE for width in widths):
        return f"torch's product of groups in {name} needs widths that are multiples of {_MULTIPLE}"
    # Blocks of the reduction, and vectors of two FP4 codes each, must be whole.
    if rhs.has_blocks and widths[0] is not None and widths[0] % 32:
        return f"torch's product of groups in {name} reduces over multiples of 32"
    if groups > _MOST_GROUPS:
        return f"torch's product of groups in {name} takes at most {_MOST_GROUPS} groups"
    return ""


def multiplies_groups_at_once(lhs: Scheme | str, rhs: Scheme, result: str) -> bool:
    """Whether torch's product of groups of bf16 gives what a sum in float32 that is rounded once does: its results are
    in bf16, so that no scale can follow. A plain lhs is its dtype."""
    scaled_later = any(not isinstance(side, str) and side.scale != "f8E8M0FNU" for side in (lhs, rhs))
    return result == "bf16" and not scaled_later and emulated_dtype(lhs, rhs) == "bf16"


def with_library(target: Target, cublaslt: Version | None, *, has_mslk: bool = True) -> Target:
    """A target whose GPU torch uses with this cuBLASLt, and with MSLK or without. One that lacks no product of the GPU
    is the target itself."""
    needed = _FIRST_WITH_128_SCALES if target.name == _WITH_128_SCALES else _FIRST_WITH_BLOCK_FORMATS
    older = None if cublaslt is None or cublaslt >= needed else cublaslt
    return replace(target, cublaslt=older, has_mslk=has_mslk or target.name != _WITH_BLOCK_GROUPS)


def takes_bias(path: str, result: str, bias: str) -> bool:
    """Whether a GEMM itself adds a bias of this dtype: torch on CUDA does so in bf16 and f16, if the result has the
    same dtype. Torch's meta device accepts more.
    """
    return path == CUSTOM or (path == NATIVE and result == bias and result in ("bf16", "f16"))


def schemes_of(recipe, kind: str) -> tuple[Scheme | None, Scheme | None]:
    """The schemes of the copies that a GEMM of a recipe reads."""
    roles, columnwise = OPERAND_ROLES[kind], reads_columnwise(kind)
    lhs, rhs = (recipe.schemes(role)[column] for role, column in zip(roles, columnwise, strict=True))
    return lhs, rhs
