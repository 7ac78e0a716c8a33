"""The state of delayed scaling on the CPU."""

from collections.abc import Callable

import torch

from steelyard.formats.schemes import Scheme
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import check_part, require


def update_scale(
    scale: torch.Tensor,
    amax_history: torch.Tensor,
    scheme: Scheme,
    *,
    margin: int = 0,
    algorithm: str | Callable[[torch.Tensor], torch.Tensor] = "max",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and history of the next step; nothing changes where the newest amax (slot 0) is 0."""
    require(
        isinstance(amax_history, torch.Tensor) and amax_history.dim() == 1 and amax_history.numel() > 0,
        "update_scale_history",
        f"the history must be a vector, got {getattr(amax_history, 'shape', amax_history)}",
    )
    history = amax_history.detach().contiguous()
    check_part(history, "amax_history", torch.float32, tuple(history.shape))
    newest = history[0].item()
    if newest == 0:
        return scale.clone(), amax_history.clone()
    amax = _pick_amax(history, newest, algorithm)
    rolled = torch.empty_like(history)
    element_max = scheme.element_max * 2.0**-margin
    old = scale.item()
    length = history.numel()
    new = _cpu.update_scale(
        amax, old, element_max, scheme.epsilon, scheme.power_of_two, history.data_ptr(), rolled.data_ptr(), length
    )
    return torch.full_like(scale.detach(), new), rolled


def _pick_amax(history: torch.Tensor, newest: float, algorithm) -> float:
    if callable(algorithm):
        return float(algorithm(history.clone()))  # pyright: ignore[reportArgumentType]
    require(
        algorithm in ("max", "most_recent"),
        "update_scale_algorithm",
        f"algorithm must be max, most_recent or a callable, got {algorithm!r}",
    )
    return newest if algorithm == "most_recent" else _cpu.largest(history.data_ptr(), history.numel())
