"""What quantized tensors of all formats have in common, and how they are saved for backward."""

import copy
from typing import Any, ClassVar

import torch

from steelyard.errors import RecipeError, shown

_AS_SAVED = "pass what prepare_for_saving returned"


class QuantizedTensorStorage:
    """The parts of a quantized tensor, without being a `torch.Tensor`.

    A format lists the attributes that hold its tensors in `PARTS` and implements `dequantize`.
    """

    PARTS: ClassVar[tuple[str, ...]] = ()

    def dequantize(self, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The values in high precision."""
        raise NotImplementedError(f"{type(self).__name__} must implement dequantize")

    def get_metadata(self) -> dict[str, Any]:
        """The keyword arguments that make an equal object."""
        return dict(vars(self))

    def prepare_for_saving(self) -> tuple[list[torch.Tensor | None], "QuantizedTensorStorage"]:
        """The tensors, for `save_for_backward`, and an object without them for `restore_from_saved` to fill."""
        skeleton = self._shallow_copy()
        skeleton.clear()
        return [getattr(self, name) for name in self.PARTS], skeleton

    def restore_from_saved(self, tensors) -> list[torch.Tensor | None]:
        """Take this object's tensors from the front of a list; returns the rest."""
        tensors = _saved_tensors(tensors)
        if len(tensors) < len(self.PARTS):
            raise RecipeError(
                f"{type(self).__name__} needs {len(self.PARTS)} saved tensors, got {len(tensors)}; {_AS_SAVED}"
            )
        for name, tensor in zip(self.PARTS, tensors, strict=False):
            setattr(self, name, tensor)
        return tensors[len(self.PARTS) :]

    def clear(self) -> None:
        """Drop every tensor."""
        for name in self.PARTS:
            setattr(self, name, None)

    def get_usages(self) -> dict[str, bool]:
        """Which copies exist."""
        return {"rowwise": True, "columnwise": False}

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        """Drop copies that are not wanted and make those that are; None leaves a copy unchanged."""
        for name, wanted in (("rowwise", rowwise_usage), ("columnwise", columnwise_usage)):
            if wanted is not None and wanted != self.get_usages()[name]:
                raise RecipeError(f"{type(self).__name__} must implement update_usage to change its {name} copy")

    def _shallow_copy(self) -> "QuantizedTensorStorage":
        return copy.copy(self)


def _saved_tensors(saved: Any) -> list[torch.Tensor | None]:
    if not isinstance(saved, list | tuple) or not all(isinstance(each, torch.Tensor | None) for each in saved):
        raise RecipeError(f"saved tensors must be a list of tensors and None, got {shown(saved)}; {_AS_SAVED}")
    return list(saved)


def size_of(shape: torch.Size, dim: Any) -> Any:
    """A size of a tensor, or all of them for None, as `Tensor.size` gives them."""
    if dim is None:
        return shape
    if type(dim) is not int or not -len(shape) <= dim < len(shape):
        raise RecipeError(f"dim must be one of the {len(shape)} dims of shape {tuple(shape)}, got {shown(dim)}")
    return shape[dim]


class SavedObjects(list):
    """What `prepare_for_saving` returns besides the tensors. A distinct type, so that restoring takes either order."""


def prepare_for_saving(*tensors) -> tuple[list[torch.Tensor | None], SavedObjects]:
    """Plain tensors for `save_for_backward`, and the objects that turn them into quantized storages again."""
    saved, objects = [], SavedObjects()
    for tensor in tensors:
        if tensor is None or isinstance(tensor, torch.Tensor):
            saved.append(tensor)
            objects.append(None)
            continue
        if not isinstance(tensor, QuantizedTensorStorage):
            raise RecipeError(f"what is saved must be a tensor, a quantized one or None, got {type(tensor).__name__}")
        parts, skeleton = tensor.prepare_for_saving()
        saved.extend(parts)
        objects.append(skeleton)
    return saved, objects


def restore_from_saved(saved, objects) -> list:
    """What `prepare_for_saving` was given, from the pair that it returned. The pair may be in either order."""
    if isinstance(saved, SavedObjects):
        saved, objects = objects, saved
    if not isinstance(objects, list | tuple) or not all(
        isinstance(each, QuantizedTensorStorage | None) for each in objects
    ):
        raise RecipeError(f"tensors must be restored by their saved objects, got {type(objects).__name__}; {_AS_SAVED}")
    saved, restored = _saved_tensors(saved), []
    for skeleton in objects:
        if skeleton is None:
            if not saved:
                raise RecipeError(f"{len(objects)} saved tensors must be restored, got {len(restored)}; {_AS_SAVED}")
            restored.append(saved.pop(0))
            continue
        filled = skeleton._shallow_copy()
        saved = filled.restore_from_saved(saved)
        restored.append(filled)
    return restored
