"""The state of delayed scaling: a scale and a history of amaxes, updated once per step."""

from collections.abc import Callable

import numpy as np
import torch

from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.reference.scales import scale_from_amax


def update_scale(
    scale: torch.Tensor,
    amax_history: torch.Tensor,
    scheme: Scheme,
    *,
    margin: int = 0,
    algorithm: str | Callable[[torch.Tensor], torch.Tensor] = "max",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and history of the next step. Nothing changes if the newest amax (slot 0) is 0.

    Experts have a scale each, and a column of the history: each is updated by itself.
    """
    history = amax_history.detach().numpy()
    if scale.dim() == 1 and history.shape[1:] == scale.shape and history.size:
        options = {"margin": margin, "algorithm": algorithm}
        pairs = [update_scale(*own, scheme, **options) for own in zip(scale, amax_history.T, strict=True)]
        return torch.stack([new for new, _ in pairs]), torch.stack([rolled for _, rolled in pairs], dim=1)
    if history.ndim != 1 or not history.size:
        wanted = "a vector, or have a column for each scale"
        raise ConstraintError("update_scale_history", f"the history must be {wanted}, got shape {history.shape}")
    if history[0] == 0:
        return scale.clone(), amax_history.clone()
    amax = _pick_amax(amax_history, algorithm)
    new_scale = scale_from_amax(
        amax,
        np.float32(scheme.element_max * 2.0**-margin),
        epsilon=scheme.epsilon,
        power_of_two=scheme.power_of_two,
        fallback=scale.item(),
    )
    rolled = np.roll(history, -1)
    rolled[0] = 0
    return torch.from_numpy(new_scale).reshape(scale.shape), torch.from_numpy(rolled)


def _pick_amax(amax_history: torch.Tensor, algorithm) -> np.ndarray:
    if callable(algorithm):
        return torch.as_tensor(algorithm(amax_history.clone()), dtype=torch.float32).numpy()
    if algorithm == "max":
        return np.fmax.reduce(amax_history.detach().numpy())
    if algorithm == "most_recent":
        return amax_history.detach().numpy()[0]
    raise ConstraintError(
        "update_scale_algorithm", f"algorithm must be max, most_recent or a callable, got {algorithm!r}"
    )
