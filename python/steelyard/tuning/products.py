"""The products of a model's layers while it runs: what they are given, and what they give.

Linear layers are modules, and hooks see their calls. Experts are multiplied within a module, as groups of rows or as a
batch, and a torch function mode sees that.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from steelyard.tensor.stack import QuantizedStack
from steelyard.tuning.batches import Batch, call, for_inference
from steelyard.tuning.layers import Group, Layer, grouped, merged

_GROUPED = ("grouped_mm", "_grouped_mm", "grouped_mm_fallback")
_BATCHED = ("bmm", "matmul", "__matmul__")


class Product(NamedTuple):
    """An input of a layer."""

    layer: str
    x: torch.Tensor
    """Of experts `[rows, columns]`, sorted by experts; else of any shape that ends with columns."""
    ends: tuple[int, ...]
    """Where the rows of each expert end; of other layers, how many rows there are."""

    def rows(self) -> list[torch.Tensor]:
        """The rows of each expert."""
        flat = self.x.flatten(0, -2)
        return [flat[start:end] for start, end in zip((0, *self.ends), self.ends, strict=False)]

    def times(self, matrices: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The rows of another input times matrices, `[experts, rows, columns]`, in one matrix."""
        parts = self._replace(x=x).rows()
        return torch.cat([functional.linear(part, matrix) for part, matrix in zip(parts, matrices, strict=True)])


Before = Callable[[Product], torch.Tensor | None]
"""What a product is given instead of its input, or None for that."""
After = Callable[[Product, torch.Tensor], torch.Tensor | None]
"""What a product gives instead, or None for that."""


@contextmanager
def watched(layers: Mapping[str, Layer], before: Before | None = None, after: After | None = None) -> Iterator[None]:
    """Sees the products of layers while a model runs."""
    stacks = {name: layer for name, layer in layers.items() if layer.is_stack}
    with ExitStack() as exits:
        for name, layer in layers.items():
            for _, module in () if layer.is_stack else layer.holders:
                exits.callback(_hook(name, module, before, after))
        if stacks:
            exits.enter_context(_Experts(stacks, before, after))
        yield


def _hook(name: str, module: nn.Module, before: Before | None, after: After | None) -> Callable[[], None]:
    """Watch a linear layer; returns what ends that."""

    def product(x: torch.Tensor) -> Product:
        return Product(name, x, (x.shape[:-1].numel(),))

    def enter(_, given: tuple) -> tuple | None:
        other = before(product(given[0])) if before else None
        return None if other is None else (other, *given[1:])

    def leave(_, given: tuple, made: torch.Tensor) -> torch.Tensor | None:
        return after(product(given[0]), made) if after else None

    handles = [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    def end() -> None:
        for handle in handles:
            handle.remove()

    return end


class _Experts(TorchFunctionMode):
    """Watches products with the weights of experts."""

    def __init__(self, stacks: Mapping[str, Layer], before: Before | None, after: After | None):
        super().__init__()
        self._before, self._after = before, after
        self._stacks = stacks

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = self._find(getattr(func, "__name__", ""), args, kwargs)
        if found is None:
            return func(*args, **kwargs)
        name, ends = found
        shape = args[0].shape
        product = Product(name, args[0].reshape(-1, shape[-1]), ends)
        other = self._before(product) if self._before else None
        x = args[0] if other is None else other.reshape(shape)
        made = func(x, *args[1:], **kwargs)
        other = self._after(product, made.reshape(-1, made.shape[-1])) if self._after else None
        return made if other is None else other.reshape(made.shape)

    def _find(self, func: str, args: tuple, kwargs: dict[str, Any]) -> tuple[str, tuple[int, ...]] | None:
        """The name of the weight that is multiplied, and where the rows of each expert end."""
        if len(args) < 2 or func not in (*_GROUPED, *_BATCHED) or not isinstance(args[1], torch.Tensor):
            return None
        x, weight = args[:2]
        name = next((name for name, layer in self._stacks.items() if _is_of(weight, layer)), None)
        if name is None:
            return None
        if func in _BATCHED:
            return (name, tuple(range(x.shape[1], x[..., 0].numel() + 1, x.shape[1]))) if x.dim() == 3 else None
        ends = kwargs.get("offs", args[2] if len(args) > 2 else None)
        return None if ends is None else (name, tuple(ends.tolist()))


def _is_of(weight: torch.Tensor, layer: Layer) -> bool:
    """Whether a product's right operand, `[experts, columns, rows]`, is a view of a whole weight, as that says."""
    own = layer.matrices().transpose(1, 2)
    return _place(weight) == _place(own)


def _place(stack: torch.Tensor) -> tuple:
    """Where the values of a tensor are, and in which order."""
    if isinstance(stack, QuantizedStack):
        return stack.shape, stack._transposed, stack._any_part().data_ptr()
    return stack.shape, stack.stride(), stack.untyped_storage().data_ptr()


def find_groups(
    model: nn.Module, layers: Mapping[str, Layer], *batches: Batch, run: Callable[[nn.Module, Batch], Any] = call
) -> list[Group]:
    """The groups of layers in the order of their calls; layers that no batch reaches are in none."""
    return merged([_groups_of(model, layers, batch, run) for batch in batches])


def _groups_of(
    model: nn.Module, layers: Mapping[str, Layer], batch: Batch, run: Callable[[nn.Module, Batch], Any]
) -> list[Group]:
    calls: list[tuple[str, torch.Tensor, int]] = []

    def note(product: Product) -> None:
        # What is written to between two calls is another input.
        version = 0 if product.x.is_inference() else product.x._version
        calls.append((product.layer, product.x, version))

    with torch.no_grad(), for_inference(model), watched(layers, note):
        run(model, batch)
    return grouped(calls, layers)
