"""The state of delayed scaling on the CPU."""

from collections.abc import Callable
from numbers import Real
from typing import Any

import torch

from steelyard.errors import shown
from steelyard.formats.checks import check_is_scheme, require
from steelyard.formats.schemes import Scheme
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import check_part, check_tensor

_LARGEST_MARGIN = 126


def update_scale(
    scale: torch.Tensor,
    amax_history: torch.Tensor,
    scheme: Scheme,
    *,
    margin: int = 0,
    algorithm: str | Callable[[torch.Tensor], torch.Tensor] = "max",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and history of the next step; nothing changes where the newest amax (slot 0) is 0.

    Experts have a scale each, and a column of the history: each is updated by itself.
    """
    _check_state(scale, amax_history)
    _check_options(scheme, margin, algorithm)
    old, histories = scale.detach().reshape(-1).tolist(), amax_history.detach()
    # A copy, so that a history is a row of memory.
    rows = histories.reshape(len(histories), -1).t().clone(memory_format=torch.contiguous_format)
    moved = [_updated(*own, scheme, margin, algorithm) for own in zip(old, rows, strict=True)]
    rolled = torch.stack([history for _, history in moved], dim=1).view(histories.shape)
    return scale.new_tensor([new for new, _ in moved]).view(scale.shape), rolled


def _updated(
    old: float, history: torch.Tensor, scheme: Scheme, margin: int, algorithm: str | Callable
) -> tuple[float, torch.Tensor]:
    """One scale and its history, in the next step."""
    newest = history[0].item()
    if newest == 0:
        return old, history
    amax = _pick_amax(history, newest, algorithm)
    rolled = torch.empty_like(history)
    element_max = scheme.element_max * 2.0**-margin
    memory = history.data_ptr(), rolled.data_ptr(), history.numel()
    return _cpu.update_scale(amax, old, element_max, scheme.epsilon, scheme.power_of_two, *memory), rolled


def _check_state(scale: Any, amax_history: Any) -> None:
    check_tensor(amax_history, "amax_history")
    check_tensor(scale, "scale")
    require(
        scale.dtype == torch.float32 and scale.numel() > 0 and (scale.dim() == 1 or scale.numel() == 1),
        "update_scale_scale",
        f"scale must be one float32 value, or one for each expert, got {scale.dtype} of shape {tuple(scale.shape)}",
    )
    found = tuple(amax_history.shape)
    fits = amax_history.numel() > 0 and (found[1:] == tuple(scale.shape) or (len(found) == 1 and scale.numel() == 1))
    wanted = "a vector with at least one slot, or have such a column for each expert"
    require(fits, "update_scale_history", f"amax_history must be {wanted}, got shape {found}")
    check_part(amax_history.detach().contiguous(), "amax_history", torch.float32, found)


def _check_options(scheme: Any, margin: Any, algorithm: Any) -> None:
    check_is_scheme(scheme, "scheme")
    require(not scheme.custom, "update_scale_scheme", f"scheme must be a built-in one, got {scheme}")
    require(
        type(margin) is int and abs(margin) <= _LARGEST_MARGIN,
        "update_scale_margin",
        f"margin must be an integer from -{_LARGEST_MARGIN} to {_LARGEST_MARGIN}, got {shown(margin)}",
    )
    require(
        callable(algorithm) or (isinstance(algorithm, str) and algorithm in ("max", "most_recent")),
        "update_scale_algorithm",
        f"algorithm must be max, most_recent or a callable, got {shown(algorithm)}",
    )


def _pick_amax(history: torch.Tensor, newest: float, algorithm: str | Callable) -> float:
    if callable(algorithm):
        made = algorithm(history.clone())
        is_number = isinstance(made, Real) or (isinstance(made, torch.Tensor) and made.numel() == 1)
        require(is_number, "update_scale_algorithm", f"algorithm must return one amax, got {shown(made)}")
        return float(made)
    return newest if algorithm == "most_recent" else _cpu.largest(history.data_ptr(), history.numel())
