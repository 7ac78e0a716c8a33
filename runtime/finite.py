"""`check_finite=True`: the first operand of a GEMM that is not finite is an error."""

from collections.abc import Callable

import torch

from steelyard.errors import NonFiniteError
from steelyard.runtime.state import State


def make_check(state: State) -> Callable[[torch.Tensor, str, str], None]:
    """A function that programs call with what they are about to quantize."""

    def check_finite(tensor: torch.Tensor, layer: str, role: str) -> None:
        finite = torch.isfinite(tensor)
        if finite.all():
            return
        values = tensor[~finite]
        raise NonFiniteError(
            f"{role} of layer '{layer}' must be finite, got {values.numel()} of {tensor.numel()} values that are not, "
            f"the first {values.flatten()[0].item()}, in call {state.calls} of the net; look for what overflows before "
            "this layer, or lower the learning rate or the loss scale"
        )

    return check_finite
