"""The state of delayed scaling on the CPU."""

from collections.abc import Callable
from numbers import Real
from typing import Any

import torch

from steelyard.errors import require, shown
from steelyard.formats.checks import check_is_scheme
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
    _check_options(scheme, margin, algorithm)
    history, old = _checked_state(scale, amax_history)
    length, count = len(history), old.numel()
    picked = _pick_amaxes(history.view(length, count), algorithm) if callable(algorithm) else None
    new, rolled = torch.empty_like(old), torch.empty_like(history)
    _cpu.update_scales(
        (old.data_ptr(), history.data_ptr(), new.data_ptr(), rolled.data_ptr(), length, count),
        0 if picked is None else picked.data_ptr(),
        algorithm == "most_recent",
        largest_code(scheme, margin),
        scheme.epsilon,
        scheme.power_of_two,
    )
    return new, rolled


def largest_code(scheme: Scheme, margin: int) -> float:
    """What an amax becomes, with room above it by a margin."""
    return scheme.element_max * 2.0**-margin


def _checked_state(scale: Any, amax_history: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """History and scale, as the kernel reads them."""
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
    history = amax_history.detach().contiguous()
    check_part(history, "amax_history", torch.float32, found)
    return history, scale.detach().contiguous()


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


def _pick_amaxes(history: torch.Tensor, algorithm: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    """What a user's own algorithm picks of each column; of one whose newest amax is 0, nothing is read."""
    return torch.tensor([_pick_amax(column, algorithm) if column[0] else 0.0 for column in history.unbind(1)])


def _pick_amax(history: torch.Tensor, algorithm: Callable[[torch.Tensor], Any]) -> float:
    made = algorithm(history.clone())
    is_number = isinstance(made, Real) or (isinstance(made, torch.Tensor) and made.numel() == 1)
    require(is_number, "update_scale_algorithm", f"algorithm must return one amax, got {shown(made)}")
    return float(made)
