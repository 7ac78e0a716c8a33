"""The generated kernels on a user's GPU, byte for byte against the reference, for `steelyard verify-gpu`."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from steelyard import recipes, reference
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import Scheme
from steelyard.recipes import Recipe, Schemes
from steelyard.reference.grouped import stored_parts
from steelyard.runtime import cpu
from steelyard.tools.gpu.checks import Check, CheckFailed, Device

GROUP = "kernels"
Shape = tuple[int, int]
Variant = tuple[str, str, Schemes]
"""The name of a recipe with its options, a role, and the role's schemes."""
_RNG = (7, 1)
_PRODUCERS = ("relu", "gelu", "gelu_tanh", "silu", "silu_and_multiply", "add", "layer_norm", "rms_norm")
_ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fp8-current", {"power_of_two": True, "epsilon": 0.5}),
    ("fp8-row", {"power_of_two": True, "epsilon": 0.5}),
    ("fp8-block", {"power_of_two": False, "weight_tiles": False}),
    ("mxfp8", {"scale_rule": "floor"}),
    ("mxfp8", {"scale_rule": "ceil"}),
    ("mxfp8", {"scale_rule": "even"}),
    ("mxfp8", {"weight_tiles": True}),
    ("mxfp4", {"scale_rule": "floor"}),
    ("mxfp4", {"scale_rule": "ceil"}),
    ("mxfp4", {"scale_rule": "even"}),
    ("nvfp4", {"row_scaled": True, "rht": False, "weight_tiles": False, "stochastic_rounding": False}),
    ("nvfp4", {"four_over_six": "weights"}),
    ("nvfp4", {"four_over_six": "all", "four_over_six_error": "mse", "rht": False}),
)
"""Options of recipes that choose other kernels."""
_WEIGHT_ONLY = ("fp8-row/none", "mxfp4/none", "nvfp4/none")
_MIXED = ("mxfp4/mxfp8", "nvfp4/mxfp8", "nvfp4/fp8-row", "fp8-row/fp8-current")
_APART = (
    ("fp8-current", "static", Scheme("f8E4M3FN", "tensor", "f32", source="static")),
    ("nvfp4", "static", Scheme("f4E2M1FN", "1x16", "f8E4M3FN", source="static", second_level="tensor")),
    ("nvfp4", "divisor", Scheme("f4E2M1FN", "1x16", "f8E4M3FN", source="divisor", second_level="tensor")),
    ("nvfp4", "1x32", Scheme("f4E2M1FN", "1x32", "f8E4M3FN", second_level="tensor")),
)
"""What no recipe makes by itself: static scales, which layers have, and NVFP4 in 1x32, which checkpoints have."""


def kernel_checks(
    place: Device, shapes: tuple[Shape, ...], dtypes: tuple[torch.dtype, ...], *, every_option: bool
) -> Iterator[Check]:
    """Every family of kernels, with the schemes of every recipe."""
    variants = recipe_variants(every_option=every_option)
    for shape in shapes:
        for dtype in dtypes:
            yield from _checks_of_values(place, variants, shape, dtype)
        yield from _checks_of_copies(place, variants, shape)
    yield _check(place, "compute_scale", _compare_compute_scale)
    for algorithm in ("max", "most_recent"):
        yield _check(place, f"update_scale {algorithm}", _compare_update_scale, algorithm)


def _check(place: Device, name: str, compare: Callable[..., None], *given: Any) -> Check:
    def run() -> str:
        compare(place, *given)
        return ""

    return Check(GROUP, name, run)


def _checks_of_values(place: Device, variants: list[Variant], shape: Shape, dtype: torch.dtype) -> Iterator[Check]:
    """Kernels that read a matrix."""

    def check(name: str, compare: Callable[..., None], *given: Any) -> Check:
        return _check(place, f"{name} {shape[0]}x{shape[1]} {_short(dtype)}", compare, *given, shape, dtype)

    for name, role, schemes in variants:
        yield check(f"quantize {name} {role}", _compare_quantize, schemes)
        yield check(f"quantize {name} {role} of experts", _compare_groups, schemes)
    for producer, schemes in zip(_PRODUCERS, _taken_in_turn(), strict=True):
        yield check(f"produce {producer}", _compare_producer, producer)
        yield check(f"quantize after {producer}", _compare_produced, producer, schemes)
    for activation in _ACTIVATIONS:
        yield check(f"epilogue {activation}", _compare_epilogue, activation)
    for options in ({}, {"rht": True}, {"per_row": True}):
        name = " ".join(["amax", *(option.replace("_", " ") for option in options)])
        yield check(name, _compare_amax, options)


def _checks_of_copies(place: Device, variants: list[Variant], shape: Shape) -> Iterator[Check]:
    """Kernels that read a quantized matrix."""
    for recipe, copies in _copies_by_recipe(variants).items():
        size = f"{shape[0]}x{shape[1]}"
        yield _check(place, f"dequantize {recipe} {size}", _compare_dequantize, copies, shape)
        yield _check(place, f"transpose {recipe} {size}", _compare_transpose, copies, shape)
        if any(scheme.has_blocks for scheme, _ in copies):
            yield _check(place, f"swizzle {recipe} {size}", _compare_swizzle, copies, shape)


def recipe_schemes() -> Iterator[tuple[str, str, tuple]]:
    """Each recipe and role with their schemes."""
    for recipe in recipes.NAMES:
        for role in recipes.ROLES:
            yield recipe, role, recipes.get(recipe).schemes(role)


def recipe_variants(*, every_option: bool) -> list[Variant]:
    """The recipes, their other FP8 formats, and other options where asked for: the roles whose schemes are new."""
    found = list(recipe_schemes())
    known = {schemes for _, _, schemes in found}
    named = other_formats()
    if every_option:
        chosen = [(name, options) for name, options in _OPTIONS if name in recipes.NAMES]
        named += [(_spelled(name, options), replace(recipes.get(name), **options)) for name, options in chosen]
    for name, recipe in named:
        for role in recipes.ROLES:
            schemes = recipe.schemes(role)
            if schemes not in known:
                known.add(schemes)
                found.append((name, role, schemes))
    apart = [(f"{name} {what}", "input", (each, each)) for name, what, each in _APART if name in recipes.NAMES]
    return found + apart


def mixed_recipes() -> tuple[str, ...]:
    """Formats of weights beside others of activations, or beside activations that are not quantized."""
    return tuple(name for name in (*_WEIGHT_ONLY, *_MIXED) if set(name.split("/")) <= {*recipes.NAMES, recipes.NONE})


def other_formats() -> list[tuple[str, Recipe]]:
    """Each recipe that has FP8 formats, with the one that is not its default."""
    found = []
    for name in recipes.NAMES:
        recipe: Any = recipes.get(name)
        if hasattr(recipe, "fp8_format"):
            other = "E4M3" if recipe.fp8_format == "HYBRID" else "HYBRID"
            found.append((f"{name} {other}", replace(recipe, fp8_format=other)))
    return found


def _spelled(name: str, options: dict[str, Any]) -> str:
    return f"{name} {' '.join(f'{option}={value}' for option, value in options.items())}"


def _taken_in_turn() -> list[Schemes]:
    """Schemes of inputs, one pair for each producer: a barrier separates producing from quantizing in a kernel."""
    inputs = [schemes for _, role, schemes in recipe_schemes() if role == "input"]
    return [inputs[index % len(inputs)] for index in range(len(_PRODUCERS))]


def _copies_by_recipe(variants: list[Variant]) -> dict[str, list[tuple[Scheme, bool]]]:
    """The schemes of each recipe's copies, and whether they are columnwise."""
    found: dict[str, list[tuple[Scheme, bool]]] = {}
    for name, _, schemes in variants:
        for is_columnwise, scheme in enumerate(schemes):
            copies = found.setdefault(name, [])
            if scheme is not None and (scheme, bool(is_columnwise)) not in copies:
                copies.append((scheme, bool(is_columnwise)))
    return found


def _needs_scale(schemes: Schemes) -> bool:
    return any(scheme is not None and scheme.source != "current" for scheme in schemes)


def _short(dtype: torch.dtype) -> str:
    return {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]


def finite_values(shape: Shape, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Values of many magnitudes, with a row of zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * torch.exp2(torch.randn(shape, generator=generator) * 2)
    x[shape[0] // 2] = 0.0
    return x.to(dtype)


def _with_special_values(x: torch.Tensor) -> torch.Tensor:
    """The same with a NaN, an infinity and a subnormal, which decide on the scale of whatever they are in."""
    x = x.clone()
    x[1, 2], x[-2, -3], x[-1, 0] = float("nan"), float("inf"), 1e-40
    return x


def _compare_quantize(place: Device, schemes: Schemes, shape: Shape, dtype: torch.dtype) -> None:
    x = finite_values(shape, dtype)
    given = {"rng": _RNG, "scale": torch.tensor(0.5) if _needs_scale(schemes) else None}
    for what, values in (("", x), (" of values that are not finite", _with_special_values(x))):
        found = place.kernels.quantize(values.to(place.name), *schemes, **moved(place, given))
        compare_copies(found, reference.quantize(values, *schemes, **given), what)


def _compare_groups(place: Device, schemes: Schemes, shape: Shape, dtype: torch.dtype) -> None:
    """Rows in groups, one of them without rows, and a stack of two matrices."""
    x, rows = finite_values(shape, dtype), shape[0]
    ends = torch.tensor([rows // 3, rows // 3, rows - 2], dtype=torch.int32)
    for values, own in ((x, ends), (torch.stack((x, 3 * x)), None)):
        given = {"rng": _RNG, "scale": _scales_of_groups(schemes, len(values) if own is None else len(own))}
        on_device = None if own is None else own.to(place.name)
        found = place.kernels.quantize_groups(values.to(place.name), on_device, *schemes, **moved(place, given))
        expected = reference.grouped_quantize(values, own, *schemes, **given)
        what = "a stack" if own is None else "groups"
        for usage, scheme, parts, copies in zip(("rowwise", "columnwise"), schemes, found, expected, strict=True):
            wanted = {} if scheme is None else stored_parts(copies)  # pyright: ignore[reportArgumentType]
            for name, part in wanted.items():
                require(same(parts[name][: part.numel()], part), f"{usage} {name} of {what} differ")


def _scales_of_groups(schemes: Schemes, count: int) -> torch.Tensor | None:
    """A static scale is one for all groups, a delayed one is of each."""
    if not _needs_scale(schemes):
        return None
    is_static = any(scheme is not None and scheme.is_static for scheme in schemes)
    return torch.tensor(0.5) if is_static else 0.5 * torch.arange(1, count + 1)


def compare_copies(found: tuple, expected: tuple, what: str = "") -> None:
    """Fails unless the copies have the same codes, scales and amaxes."""
    different = [
        f"{'columnwise' if wanted.columnwise else 'rowwise'} {part}"
        for copy, wanted in zip(found, expected, strict=True)
        if wanted is not None
        for part in ("codes", "scales", "amax")
        if getattr(wanted, part) is not None and not same(getattr(copy, part), getattr(wanted, part))
    ]
    if different:
        raise CheckFailed(f"{', '.join(different)}{what} differ")


def _producer_inputs(producer: str, shape: Shape, dtype: torch.dtype) -> tuple:
    x, vector = finite_values(shape, dtype), torch.linspace(-2, 2, shape[1]).to(dtype)
    norms = {"layer_norm": (x, vector, vector, 1e-5), "rms_norm": (x, vector, 1e-5)}
    pair = (x, finite_values(shape, dtype, seed=1))
    return pair if producer in ("silu_and_multiply", "add") else norms.get(producer, (x,))


def _compare_producer(place: Device, producer: str, shape: Shape, dtype: torch.dtype) -> None:
    inputs = _producer_inputs(producer, shape, dtype)
    found = place.kernels.produce(producer, _moved_all(place, inputs))
    require(same(found, cpu.produce(producer, inputs, dtype)), "values differ")


def _compare_produced(place: Device, producer: str, schemes: Schemes, shape: Shape, dtype: torch.dtype) -> None:
    inputs = _producer_inputs(producer, shape, dtype)
    given = {"rng": _RNG, "scale": torch.tensor(0.5) if _needs_scale(schemes) else None}
    found = place.kernels.quantize_produced(producer, _moved_all(place, inputs), *schemes, **moved(place, given))
    compare_copies(found, reference.quantize(cpu.produce(producer, inputs, dtype), *schemes, **given))


def _compare_epilogue(place: Device, activation: str, shape: Shape, dtype: torch.dtype) -> None:
    source = finite_values(shape, torch.float32)
    bias, residual = torch.linspace(-2, 2, shape[1]).to(dtype), finite_values(shape, dtype, seed=2)
    before = source + bias.float()
    activated = before if activation == "none" else cpu.produce(activation, (before,), torch.float32)
    expected = (activated + residual.float()).to(dtype), before.to(dtype)
    found = [torch.empty(shape, dtype=dtype, device=place.name) for _ in expected]
    given = moved(place, {"bias": bias, "residual": residual})
    if activation != "none":
        given["preactivation"] = found[1]
    place.kernels.epilogue(source.to(place.name), found[0], activation=activation, **given)
    require(same(found[0], expected[0]), "the result differs")
    require(activation == "none" or same(found[1], expected[1]), "the preactivation differs")


def _compare_amax(place: Device, options: dict[str, bool], shape: Shape, dtype: torch.dtype) -> None:
    x = finite_values(shape, dtype)
    for values in (x, _with_special_values(x)):
        found = place.kernels.amax(values.to(place.name), **options)
        require(same(found, reference.amax(values, **options)), "values differ")


def _reference_copies(copies: list[tuple[Scheme, bool]], shape: Shape) -> Iterator[QuantizedCopy]:
    x = finite_values(shape, torch.float32)
    for scheme, columnwise in copies:
        schemes = (None, scheme) if columnwise else (scheme, None)
        scale = torch.tensor(0.5) if scheme.source != "current" else None
        copy = reference.quantize(x, *schemes, scale=scale, rng=_RNG)[columnwise]
        assert copy is not None
        yield copy


def _named(copy: QuantizedCopy) -> str:
    return f"{'columnwise' if copy.columnwise else 'rowwise'} {copy.scheme.element} {copy.scheme.block}"


def _compare_dequantize(place: Device, copies: list[tuple[Scheme, bool]], shape: Shape) -> None:
    for copy in _reference_copies(copies, shape):
        for dtype in (torch.float32, torch.bfloat16):
            found = place.kernels.dequantize(copy_on(copy, place.name), dtype)
            require(same(found, reference.dequantize(copy, dtype)), f"values of {_named(copy)} in {dtype} differ")


def _compare_transpose(place: Device, copies: list[tuple[Scheme, bool]], shape: Shape) -> None:
    """Copies of the other usage where both have the same values, and else the plain transpose of bytes."""
    for copy in _reference_copies(copies, shape):
        given = copy_on(copy, place.name)
        turned = place.kernels.transpose_codes(given.codes)
        require(same(turned, copy.codes.t().contiguous()), f"codes of {_named(copy)}, turned, differ")
        if copy.scheme.is_transposable:
            compare_copies((place.kernels.transpose(given),), (reference.transpose(copy),))


def _compare_swizzle(place: Device, copies: list[tuple[Scheme, bool]], shape: Shape) -> None:
    for copy in _reference_copies(copies, shape):
        if copy.scheme.has_blocks:
            found = place.kernels.swizzle(copy_on(copy, place.name))
            require(same(found, reference.swizzle(copy)), f"scales of {_named(copy)} differ")


def _compare_compute_scale(place: Device) -> None:
    scheme = Scheme("f8E4M3FN", "tensor", "f32", power_of_two=True)
    for amax in (7.0, 0.0, 1e-44, float("inf"), float("nan")):
        found = place.kernels.compute_scale(torch.tensor(amax).to(place.name), scheme)
        expected, _ = reference.quantize(torch.zeros(1, 1), scheme, None, amax=torch.tensor(amax))
        require(same(1 / found.cpu(), expected.scales), f"the scale of an amax of {amax} differs")  # pyright: ignore[reportOptionalMemberAccess]


def _compare_update_scale(place: Device, algorithm: str) -> None:
    scheme = Scheme("f8E4M3FN", "tensor", "f32", source="delayed")
    for slots in ([2.0, 7.0, 4.0], [0.0, 7.0], [float("nan"), 3.0], [1e-45] * 40):
        scale, history = torch.tensor(0.7), torch.tensor(slots)
        state = [tensor.to(place.name) for tensor in (scale, history, history[0])]
        found = place.kernels.update_scale(*state, scheme, algorithm=algorithm)
        expected = reference.update_scale(scale, history, scheme, algorithm=algorithm)
        require(all(map(same, found, expected)), f"the state after an amax of {slots[0]} differs")
    scales, columns = torch.tensor([0.7, 3.0, 1.0]), torch.tensor([[2.0, 0.0, float("nan")], [7.0, 9.0, 3.0]])
    found = place.kernels.update_scale(*_moved_all(place, (scales, columns, columns[0])), scheme, algorithm=algorithm)
    expected = reference.update_scale(scales, columns, scheme, algorithm=algorithm)
    require(all(map(same, found, expected)), "the state of experts differs")


def copy_on(copy: QuantizedCopy, device: str) -> QuantizedCopy:
    """A quantized copy with its parts on another device."""
    amax = None if copy.amax is None else copy.amax.to(device)
    return replace(copy, codes=copy.codes.to(device), scales=copy.scales.to(device), amax=amax)


def moved(place: Device, given: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments, the tensors among them, and what seeds the rounding, on the device."""
    tensors = [torch.tensor(value) if isinstance(value, tuple) else value for value in given.values()]
    return dict(zip(given, _moved_all(place, tuple(tensors)), strict=True))


def _moved_all(place: Device, values: tuple) -> tuple:
    return tuple(value.to(place.name) if isinstance(value, torch.Tensor) else value for value in values)


def require(holds: bool, otherwise: str) -> None:
    """Fails with these words if something does not hold."""
    if not holds:
        raise CheckFailed(otherwise)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether dtype, shape and values are equal; all NaNs count as equal."""
    found = found.cpu()
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    return bool(((found == expected) | ((found != found) & (expected != expected))).all())
