"""Compiled models on a user's GPU, for `steelyard verify-gpu`."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import steelyard
from steelyard import recipes, reference
from steelyard.errors import SteelyardError, TargetError
from steelyard.formats.schemes import Scheme
from steelyard.tools.gpu.checks import Check, CheckFailed, CheckSkipped, Device
from steelyard.tools.gpu.kernels import compare_copies, finite_values, mixed_recipes, require, same

_MOST_SHARE = 0.25
_SLEEP = 20_000_000
"""Cycles, some 10 ms: longer than the host takes to give a second stream its work."""
Made = tuple[nn.Module, torch.Tensor]


def make_mlp(width: int, dtype: torch.dtype = torch.float32) -> Made:
    """Two layers and what to call them with. Their sizes are not multiples of what native GEMMs need."""
    torch.manual_seed(0)
    inner = 2 * width + 10
    model = nn.Sequential(nn.Linear(width + 4, inner), nn.GELU(), nn.Linear(inner, width - 8))
    return model.to(dtype), torch.randn(width // 2 + 2, width + 4).to(dtype)


def make_block(width: int) -> Made:
    """A transformer block of 4 heads."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(
        width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    return block, torch.randn(2, 24, width)


class Experts(nn.Module):
    """Two products of each expert, of rows in groups: one has none."""

    ends: torch.Tensor

    def __init__(self, width: int, rows: int):
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 2 * width, width).bfloat16())
        self.down = nn.Parameter(torch.randn(4, width, 2 * width).bfloat16())
        ends = torch.tensor([rows // 3, rows // 3, rows // 2, rows], dtype=torch.int32)
        self.register_buffer("ends", ends)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.grouped_mm(x, self.up.transpose(-2, -1), offs=self.ends)
        return nn.functional.grouped_mm(nn.functional.silu(inner), self.down.transpose(-2, -1), offs=self.ends)


def make_experts(width: int) -> Made:
    """Experts and rows for them."""
    torch.manual_seed(0)
    return Experts(width, width + 5), torch.randn(width + 5, width).bfloat16()


def model_checks(place: Device, width: int, *, is_quick: bool) -> Iterator[Check]:
    """Outputs and gradients of compiled models, compared with those of the CPU target, and weights kept quantized."""

    def mlp() -> Made:
        return make_mlp(width)

    def block() -> Made:
        return make_block(width // 4 * 4)

    makers: dict[str, Callable[[], Made]] = {"mlp": mlp}
    if not is_quick:
        makers |= {"bf16 mlp": lambda: make_mlp(width, torch.bfloat16), "block": block}
    for recipe in (*recipes.NAMES, *mixed_recipes()):
        for name, make in makers.items():
            yield _check("models", name, compare_model, place, recipe, make)
    for recipe in (*recipes.NAMES, *mixed_recipes()):
        yield _check("models", "experts", compare_model, place, recipe, lambda: make_experts(width // 16 * 16))
    for recipe in () if is_quick else recipes.NAMES:
        yield _check("models", "attention", _compare_attention, place, recipe, block)
    for recipe in (*recipes.NAMES, *mixed_recipes()):
        yield _check("models", "quantized weights", _compare_quantized_weights, place, recipe, mlp)


def stream_checks(place: Device, width: int) -> Iterator[Check]:
    """A net that is called on two streams."""
    for recipe in recipes.NAMES:
        yield _check("streams", "two streams", _compare_streams, place, recipe, lambda: make_mlp(width))


def graph_checks(place: Device, width: int) -> Iterator[Check]:
    """Compiled forwards in CUDA graphs, and a kernel that is first met in one."""
    for recipe in recipes.NAMES:
        yield _check("graphs", "cuda graph", _compare_graph, place, recipe, lambda: make_mlp(width))
    # Last: a capture that fails may leave torch's allocator in a state that others would suffer from.
    yield Check("graphs", "a kernel first launched in a capture", lambda: _compare_cold_capture(place))


def _check(
    group: str, name: str, compare: Callable[..., str], place: Device, recipe: str, make: Callable[[], Made]
) -> Check:
    return Check(group, f"{name} {recipe}", lambda: compare(place, recipe, *make()))


def device_checks(others: list[str], place_on: Callable[[str], Device], width: int) -> Iterator[Check]:
    """Kernels and models on the GPUs that are not verified otherwise, while torch's current device is another."""

    def compare_small_model(name: str) -> str:
        return compare_model(_placed(place_on, name), recipes.NAMES[0], *make_mlp(width))

    if not others:
        yield Check("devices", "other GPUs", _skip_devices)
    for name in others:
        yield Check("devices", f"kernels on {name}", lambda n=name: _compare_kernels(_placed(place_on, n)))
        yield Check("devices", f"model on {name}", lambda n=name: compare_small_model(n))


def _skip_devices() -> str:
    raise CheckSkipped("torch sees one GPU")


def _placed(place_on: Callable[[str], Device], name: str) -> Device:
    try:
        return place_on(name)
    except TargetError as error:
        # A second card of another kind, for the display.
        raise CheckSkipped(str(error)) from None


def _compare_kernels(place: Device) -> str:
    row, col = recipes.get("mxfp8").schemes("input")
    x = finite_values((70, 90), torch.bfloat16)
    compare_copies(place.kernels.quantize(x.to(place.name), row, col), reference.quantize(x, row, col))
    return ""


def compare_model(place: Device, recipe: str, model: nn.Module, x: torch.Tensor) -> str:
    """The error of outputs and gradients against the CPU target, as a share of the error of quantization.

    GEMMs sum in another order, and a different last bit may flip a code: the error may be up to a quarter of the error
    of quantization itself. Detail is the largest share.
    """
    exact = _step(copy.deepcopy(model), x)
    expected = _step(_compiled(model, recipe, "cpu"), x)
    found = _step(_compiled(model, recipe, "cuda", place.name), x.to(place.name))
    return _largest_share(found, expected, exact)


def _largest_share(found: dict, expected: dict, exact: dict) -> str:
    shares = {}
    for name, wanted in expected.items():
        allowed = (wanted - exact[name]).norm().item()
        difference = (found[name] - wanted).norm().item()
        shares[name] = difference / allowed if allowed else difference
    # A NaN must not hide behind a number.
    worst = max(shares, key=lambda name: float("inf") if shares[name] != shares[name] else shares[name])
    if not shares[worst] <= _MOST_SHARE:
        raise CheckFailed(f"{worst} is off by {shares[worst]:.1e} of what quantizing changes")
    return f"error {shares[worst]:.1e} of quantization's"


def _compiled(model: Any, recipe: str, target: str, device: str = "cpu", **options: Any) -> Any:
    return steelyard.compile(copy.deepcopy(model).to(device), recipe, target=target, **options)


def _step(net: Any, x: Any) -> dict:
    """Output and gradients of one step, in float64 on the CPU."""
    x = x.detach().clone().requires_grad_()
    y = net(x)
    y.square().sum().backward()
    found = {"y": y, "dx": x.grad} | {f"gradient of {name}": p.grad for name, p in net.named_parameters()}
    return {name: tensor.detach().cpu().double() for name, tensor in found.items() if tensor is not None}


def _compare_attention(place: Device, recipe: str, model: nn.Module, x: torch.Tensor) -> str:
    """Batched products, which are quantized in the forward only."""
    model = model.eval()
    with torch.no_grad():
        exact = {"y": model(x).double()}
        expected = {"y": _compiled(model, recipe, "cpu", attention=True)(x).double()}
        net = _compiled(model, recipe, "cuda", place.name, attention=True)
        found = {"y": net(x.to(place.name)).cpu().double()}
    return _largest_share(found, expected, exact)


def _compare_quantized_weights(place: Device, recipe: str, model: nn.Module, x: torch.Tensor) -> str:
    """A net without high-precision weights computes what one with them does."""
    net, x = _compiled(model.eval(), recipe, "cuda", place.name, weights="quantized"), x.to(place.name)
    with torch.no_grad():
        expected = _compiled(model.eval(), recipe, "cuda", place.name)(x)
        for call in ("first", "second"):
            require(same(net(x), expected.cpu()), f"the {call} call differs from that of a net with cached weights")
    return ""


def _compare_streams(place: Device, recipe: str, model: nn.Module, x: torch.Tensor) -> str:
    """The second stream reads weights that the first one is still quantizing, and waits for them by itself."""
    net, x = _compiled(model.eval(), recipe, "cuda", place.name), x.to(place.name)
    with torch.no_grad():
        expected = net(x).cpu()
        side = torch.cuda.Stream(place.name)
        torch.cuda.synchronize(place.name)
        net.requantize()
        torch.cuda._sleep(_SLEEP)
        first = net(x)
        with torch.cuda.stream(side):
            second = net(x)
        torch.cuda.synchronize(place.name)
    require(same(first, expected), "the first stream's result differs")
    require(same(second, expected), "the second stream's result differs")
    return ""


def _compare_graph(place: Device, recipe: str, model: nn.Module, x: torch.Tensor) -> str:
    net, x = _compiled(model.eval(), recipe, "cuda", place.name), x.to(place.name)
    with torch.no_grad():
        net(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = net(x)
        for factor in (1.0, -0.5):
            x.mul_(factor)
            expected = net(x).cpu()
            found.zero_()
            graph.replay()
            torch.cuda.synchronize(place.name)
            require(same(found, expected), "a replay differs from the call")
    return ""


def _compare_cold_capture(place: Device) -> str:
    """Loading a kernel is no part of a graph: it is refused with a reason, or the replay is right."""
    # No recipe has this epsilon, so that no other check has launched the kernel.
    scheme = Scheme("f8E4M3FN", "1x128", "f32", epsilon=0.625)
    x = torch.ones(16, 128, device=place.name)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(place.name)
    try:
        with torch.cuda.graph(graph):
            found, _ = place.kernels.quantize(x, scheme, None)
    except Exception as error:
        refusal = _own_error(error)
        if refusal is None:
            raise
        return f"refused: {refusal}"
    found.codes.zero_()
    graph.replay()
    torch.cuda.synchronize(place.name)
    # 1 / 448 is the scale of ones, and 448 has the code 0x7e.
    require(bool((found.codes == 0x7E).all()), "a replay of a kernel that was loaded in the capture is wrong")
    return "loaded in the capture"


def _own_error(error: BaseException | None) -> SteelyardError | None:
    """The error of ours that an error is, or that it followed: torch complains about a capture that ends early."""
    while error is not None:
        if isinstance(error, SteelyardError):
            return error
        error = error.__cause__ or error.__context__
    return None
