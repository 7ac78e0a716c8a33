"""The table of paths against torch's rules, and the calls of `scaled_mm` that native GEMMs make."""

import itertools
from dataclasses import fields, replace

import pytest
import torch
import torch_rules
from simulation import simulated
from torch_rules import E4M3, E5M2, FP4, Side

from steelyard import recipes, reference
from steelyard.errors import RecipeError
from steelyard.formats.gemms import KINDS
from steelyard.formats.parts import part_shapes, round_up
from steelyard.formats.schemes import Scheme
from steelyard.recipes import Recipe
from steelyard.reference.gemm import operand
from steelyard.runtime.cuda import gemm, streams
from steelyard.runtime.dtypes import DTYPES
from steelyard.targets.architectures import TARGETS, target_of
from steelyard.targets.gemm_paths import (
    EMULATED,
    HIGH_PRECISION,
    NATIVE,
    gemm_path,
    grouped_gemm_path,
    schemes_of,
    takes_bias,
)

RECIPES = ("fp8-delayed", "fp8-current", "fp8-row", "fp8-block", "mxfp8", "mxfp4", "nvfp4")
COLUMNWISE = {"fprop": (False, False), "dgrad": (False, True), "wgrad": (True, True)}
TOKENS, INPUTS, OUTPUTS = 100, 200, 300  # not multiples of any block: padding is part of the contract
LIBRARIES = ("", "+cublaslt12.6", "+cublaslt12.8")
ELEMENTS = {"f8E4M3FN": E4M3, "f8E5M2": E5M2, "f4E2M1FN": FP4}
SCALINGS = {
    "tensor": torch_rules.TENSOR,
    "row": torch_rules.ROW,
    "1x128": torch_rules.ROW_128,
    "128x128": torch_rules.TILE_128,
    **dict.fromkeys(("1x32", "32x1", "32x32"), torch_rules.MX),
    **dict.fromkeys(("1x16", "16x16"), torch_rules.VECTOR_16),
}
SCALES = {"f32": torch_rules.F32, "f8E8M0FNU": torch_rules.E8M0, "f8E4M3FN": E4M3}
OPTIONS = {
    "fp8_format": ("E4M3", "HYBRID"),
    "scale_rule": ("rceil", "floor"),
    "four_over_six": ("none", "weights", "activations", "all"),
    **dict.fromkeys(("weight_tiles", "power_of_two", "rht", "stochastic_rounding", "row_scaled"), (True, False)),
}


def every_recipe() -> list[Recipe]:
    """Each recipe with every choice of its options that changes a scheme."""
    found = []
    for name in RECIPES:
        plain = recipes.get(name)
        varied = [field.name for field in fields(plain) if field.name in OPTIONS]
        for values in itertools.product(*(OPTIONS[option] for option in varied)):
            try:
                found.append(replace(plain, **dict(zip(varied, values, strict=True))))
            except RecipeError:
                continue  # options that exclude each other
    return found


def every_pair() -> set[tuple[str, Scheme, Scheme]]:
    """Every kind of GEMM with the schemes that recipes give it, and with those of two unlike recipes."""
    made = {(kind, schemes_of(recipe, kind)) for recipe in every_recipe() for kind in KINDS}
    alike = {(kind, lhs, rhs) for kind, (lhs, rhs) in made}
    sides = {kind: [schemes_of(recipes.get(name), kind) for name in RECIPES] for kind in KINDS}
    unlike = {(kind, a[0], b[1]) for kind in KINDS for a, b in itertools.permutations(sides[kind], 2)}
    return alike | unlike


def side_of(scheme: Scheme) -> Side | None:
    """An operand as torch sees it; None if it has no word for its scales."""
    if scheme.second_level == "row":
        return None
    levels = scheme.second_level != "none"
    return Side(
        ELEMENTS[scheme.element],
        (SCALINGS[scheme.block], *[torch_rules.TENSOR] * levels),
        (SCALES[scheme.scale], *[torch_rules.F32] * levels),
    )


PAIRS = sorted(every_pair(), key=str)


def test_the_sweep_has_the_cases_that_matter():
    found = {(kind, lhs.family, lhs.element, rhs.element) for kind, lhs, rhs in PAIRS if lhs.family == rhs.family}
    for family in ("tensor", "row", "block", "mx"):
        assert {("dgrad", family, "f8E5M2", "f8E4M3FN"), ("wgrad", family, "f8E5M2", "f8E4M3FN")} <= found
    assert any(lhs.family != rhs.family for _, lhs, rhs in PAIRS)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_native_is_what_torch_has(target, library):
    chosen = target_of(target + library)
    for kind, lhs, rhs in PAIRS:
        sides = side_of(lhs), side_of(rhs)
        product = None if None in sides else torch_rules.product_of(*sides)
        if {lhs.family, rhs.family} == {"tensor", "row"}:
            # Codes are multiplied as if they had a scale per tensor, and their scales follow.
            product = torch_rules.product_of(*(replace(side, scalings=(torch_rules.TENSOR,)) for side in sides))
        version = chosen.cublaslt or (13, 0)
        has = product is not None and chosen.capability[0] in product.capabilities and version >= product.cublaslt
        found = gemm_path(kind, lhs, rhs, chosen)
        assert (found.path == NATIVE) == has, f"{kind} of {lhs} and {rhs}: {found}"
        assert found.reason


@pytest.mark.parametrize("result", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("bias", ["f32", "bf16", "f16"])
def test_which_biases_are_native(result, bias):
    try:
        torch_rules.check_bias(DTYPES[bias], DTYPES[result])
        accepted = True
    except AssertionError:
        accepted = False
    assert takes_bias(NATIVE, result, bias) == accepted


NATIVE_CALLS = [
    (kind, schemes, path)
    for kind, *schemes in PAIRS
    for path in {gemm_path(kind, *schemes, target) for target in TARGETS.values()}
    if path.path == NATIVE
]


def sizes(kind):
    """Rows of A, rows of B, and the reduction."""
    return {
        "fprop": (TOKENS, OUTPUTS, INPUTS),
        "dgrad": (TOKENS, INPUTS, OUTPUTS),
        "wgrad": (OUTPUTS, INPUTS, TOKENS),
    }[kind]


def operand_on_meta(scheme: Scheme, columnwise: bool, rows: int, reduction: int) -> gemm.GemmOperand:
    """The operand of a GEMM, in the layout that it reads."""
    laid_out = replace(scheme, layout="gemm") if scheme.has_blocks else scheme
    shape = (reduction, rows) if columnwise else (rows, reduction)
    parts = part_shapes(laid_out, shape, columnwise)
    dtypes = {"i8": torch.uint8, "f32": torch.float32}
    made = {name: torch.empty(size, dtype=dtypes[dtype], device="meta") for name, (size, dtype) in parts.items()}
    return gemm.GemmOperand(made["codes"], made["scales"], made.get("amax"), scheme)


@pytest.mark.parametrize("fp4", ["nvfp4", "nvfp4_single_scale"])
@pytest.mark.parametrize(
    ("out_dtype", "bias"), [("bf16", False), ("bf16", True), ("f16", False), ("f16", True), ("f32", False)]
)
def test_native_calls_are_accepted(out_dtype, bias, fp4, monkeypatch):
    """By torch's meta device, and by the rules of its CUDA build."""
    calls = []
    meta = gemm.scaled_mm

    def check(*arguments, **options):
        calls.append(torch_rules.check_call(*arguments, **options))
        return meta(*arguments, **options)

    monkeypatch.setattr(gemm, "scaled_mm", check)
    if fp4 == "nvfp4_single_scale":
        monkeypatch.setattr(streams, "DEVICES", ("meta",))
        monkeypatch.setenv("STEELYARD_FP4_SCALES", "own")
    dtype = DTYPES[out_dtype]
    for kind, schemes, path in NATIVE_CALLS:
        padded = [round_up(size, by) for size, by in zip(sizes(kind), path.multiples, strict=True)]
        pairs = zip(schemes, COLUMNWISE[kind], padded[:2], strict=True)
        operands = [operand_on_meta(scheme, columnwise, rows, padded[2]) for scheme, columnwise, rows in pairs]
        vector = torch.empty(padded[1], dtype=dtype, device="meta") if bias else None
        result = gemm.multiply(*operands, bias=vector, out_dtype=dtype)
        assert tuple(result.shape) == tuple(padded[:2])
        assert result.dtype == dtype
    rowwise = {"rowwise"} if out_dtype == "bf16" else set()
    assert {product.name for product in calls} == {"tensorwise", "deepseek", "mxfp8", fp4} | rowwise


def test_the_contract_refuses_what_is_not_padded():
    scheme = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
    operands = [operand_on_meta(scheme, False, 16, 40) for _ in range(2)]
    with pytest.raises(RuntimeError, match="divisible by 16"):
        gemm.multiply(*operands)


def copy_of(scheme: Scheme | None, columnwise: bool, rows: int, reduction: int):
    """The copy whose rows run along the reduction when a GEMM reads it; without a scheme, its values."""
    shape = (reduction, rows) if columnwise else (rows, reduction)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    if scheme is None:
        return x
    schemes = (None, scheme) if columnwise else (scheme, None)
    scale = torch.tensor(2.0) if scheme.source == "delayed" else None
    return reference.quantize(x, *schemes, scale=scale, rng=(1, 2))[columnwise]


def test_turned_operands_hold_the_same_values():
    """MX columns become rows along the reduction; their scales follow."""
    copy = copy_of(Scheme("f8E4M3FN", "32x1", "f8E8M0FNU"), True, 48, 64)
    operand = gemm.gemm_operand(simulated("sm_100a"), copy)
    assert torch.equal(operand.codes, copy.codes.t())
    assert torch.equal(operand.scales, reference.swizzle(copy))


EMULATED_RECIPES = (*RECIPES, "nvfp4/mxfp8", "mxfp4/fp8-row", "nvfp4/fp8-block", "fp8-row/none", "nvfp4/none")


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", EMULATED_RECIPES)
@pytest.mark.parametrize("kind", KINDS)
def test_emulated_products_are_within_the_bound(recipe, kind):
    schemes = schemes_of(recipes.get(recipe), kind)
    if None in schemes and kind == "wgrad":
        return  # in high precision
    rows_a, rows_b, reduction = (size // 5 for size in sizes(kind))
    pairs = zip(schemes, COLUMNWISE[kind], (rows_a, rows_b), strict=True)
    a, b = (copy_of(scheme, columnwise, rows, reduction) for scheme, columnwise, rows in pairs)
    check_emulated(a, b)
    if isinstance(a, torch.Tensor):
        check_emulated(a.float() * 1.001, b)
        check_emulated(a.half(), b)


def check_emulated(a, b) -> None:
    left, right = (torch.from_numpy(operand(copy)) for copy in (a, b))
    found = torch.empty(left.shape[0], right.shape[0])
    simulated("sm_90a").emulate(a, b, found)
    bound = (left.shape[1] + 8) * 2.0**-24 * (left.abs() @ right.abs().t())
    assert bool(((found.double() - left @ right.t()).abs() <= bound).all())


def test_which_products_are_in_bf16():
    """Those whose operands are exact in it: no float32 activations, and no float32 scales of blocks."""
    row, tile = Scheme("f8E4M3FN", "row", "f32"), Scheme("f8E4M3FN", "128x128", "f32")
    weight, plain = copy_of(row, False, 16, 128), torch.zeros(16, 128)
    seen = []
    multiply = gemm.multiply_decoded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemm, "multiply_decoded", lambda *given: seen.append(given[0].dtype) or multiply(*given))
        for a, b in ((plain.bfloat16(), weight), (plain, weight), (plain.half(), weight), (weight, weight)):
            simulated("sm_90a").emulate(a, b, torch.empty(16, 16))
        simulated("sm_90a").emulate(weight, copy_of(tile, False, 16, 128), torch.empty(16, 16))
    assert seen == [torch.bfloat16, torch.float32, torch.float32, torch.bfloat16, torch.float32]


def exact_scaled_mm(a, b, scale_a, scaling_a, scale_b, scaling_b, *, bias, output_dtype, **_):
    """torch's product of FP8 with scales of tensors or rows, in float64."""
    assert scaling_a == scaling_b
    exact = (a.double() * scale_a[0].double()) @ (b.double() * scale_b[0].double())
    return (exact if bias is None else exact + bias.double()).to(output_dtype)


@pytest.mark.parametrize("families", [("row", "row"), ("row", "tensor"), ("tensor", "row")], ids="-".join)
@pytest.mark.parametrize("elements", [("f8E4M3FN", "f8E4M3FN"), ("f8E5M2", "f8E4M3FN")], ids=["e4m3", "e5m2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_scales_of_rows_are_applied(families, elements, dtype, monkeypatch):
    """By torch where it writes what is asked for, otherwise after a product of the codes alone."""
    monkeypatch.setattr(gemm, "scaled_mm", exact_scaled_mm)
    schemes = [Scheme(*each, "f32") for each in zip(elements, families, strict=True)]
    copies = [copy_of(scheme, False, rows, 48) for scheme, rows in zip(schemes, (5, 7), strict=True)]
    left, right = (torch.from_numpy(operand(copy)) for copy in copies)
    operands = [gemm.gemm_operand(simulated("sm_90a"), copy) for copy in copies]
    bias = None if dtype == torch.float32 else torch.linspace(-2, 2, 7).to(dtype)
    found = gemm.multiply(*operands, bias=bias, out_dtype=dtype)
    exact, magnitude = left @ right.t(), left.abs() @ right.abs().t()
    if bias is not None:
        exact, magnitude = exact + bias.double(), magnitude + bias.double().abs()
    bound = (48 + 8) * 2.0**-24 * magnitude + exact.abs() * torch.finfo(dtype).eps / 2
    assert found.dtype == dtype
    assert bool(((found.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize(
    ("lhs", "rhs", "path"),
    [
        (Scheme("f8E5M2", "tensor", "f32"), Scheme("f8E5M2", "tensor", "f32"), EMULATED),
        (Scheme("f8E4M3FN", "128x128", "f32"), Scheme("f8E4M3FN", "128x128", "f32"), EMULATED),
        (Scheme("f8E4M3FN", "tensor", "f32"), Scheme("f8E4M3FN", "1x128", "f32"), EMULATED),
        (Scheme("f8E4M3FN", "tensor", "f32"), None, HIGH_PRECISION),
        (None, Scheme("f8E4M3FN", "row", "f32"), EMULATED),
        (Scheme("f8E4M3FN", "row", "f32"), Scheme("f4E2M1FN", "1x32", "f8E8M0FNU"), EMULATED),
        (*[Scheme("f4E2M1FN", "1x32", "f8E4M3FN", second_level="tensor")] * 2, EMULATED),
        (None, Scheme("i8", "tensor", "f32", custom="mine"), HIGH_PRECISION),
        (Scheme("i8", "tensor", "f32", custom="mine"), Scheme("f8E4M3FN", "tensor", "f32"), HIGH_PRECISION),
    ],
)
def test_what_no_target_multiplies(lhs, rhs, path):
    for target in TARGETS.values():
        assert gemm_path("fprop", lhs, rhs, target).path == path


@pytest.mark.parametrize("target", TARGETS)
def test_groups_are_native_where_torch_multiplies_them(target):
    """One scale per group is given as one per row. Of a weight's gradient, groups would be multiples of 16 rows or of
    32."""
    chosen = target_of(target)
    found = set()
    for kind, lhs, rhs in PAIRS:
        sides = [_grouped_side(scheme) for scheme in (lhs, rhs)]
        product = None if None in sides else torch_rules.grouped_product_of(*sides)
        accepts = product is not None and chosen.capability == (product.capabilities[0], 0) and kind != "wgrad"
        given = {"result": "bf16", "widths": (64, 64, 48), "groups": 8}
        path = grouped_gemm_path(kind, lhs, rhs, chosen, **given)
        assert path.path == (NATIVE if accepts else EMULATED), (kind, lhs, rhs)
        found |= {product.name} if path.path == NATIVE else set()
        refused = [{"result": "f32"}, {"widths": (64, 64, 40)}, {"groups": 1024}]
        # Blocks of the reduction must be whole, and kernels for them are an option of torch's build.
        refused += [{"widths": (48, 48, 48)}] if lhs.has_blocks else []
        for changed in refused:
            assert grouped_gemm_path(kind, lhs, rhs, chosen, **given | changed).path == EMULATED
        bare = grouped_gemm_path(kind, lhs, rhs, replace(chosen, has_mslk=False), **given)
        assert bare.path == (EMULATED if lhs.has_blocks else path.path)
    assert found == {"sm_90a": {"rowwise"}, "sm_100a": {"mxfp8", "mxfp4", "nvfp4"}}.get(target, set())


def _grouped_side(scheme: Scheme) -> Side | None:
    """An operand in groups as torch sees it; None if torch has no name for its scales."""
    scalings = {
        "tensor": (torch_rules.ROW,),
        "row": (torch_rules.ROW,),
        "mx": (torch_rules.MX,),
        "mxfp4": (torch_rules.MX,),
        "nvfp4": (torch_rules.VECTOR_16, torch_rules.TENSOR),
    }
    is_wide = scheme.family == "nvfp4" and scheme.block == "1x32"
    if scheme.family not in scalings or scheme.second_level == "row" or is_wide:
        return None
    levels = (SCALES[scheme.scale], torch.float32)[: len(scalings[scheme.family])]
    return Side(ELEMENTS[scheme.element], scalings[scheme.family], levels)
