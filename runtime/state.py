"""The state of a net: scales, histories of amaxes, counts and random bits, as plain tensors by name."""

import math
import re
from collections.abc import Callable, Iterable, Mapping

import torch
from torch_mlir import ir

from steelyard.errors import StateError, shown
from steelyard.formats.gemms import ROLES
from steelyard.formats.schemes import CACHED_ROLES
from steelyard.ir.attributes import RNG
from steelyard.runtime.cpu.arguments import has_memory
from steelyard.runtime.cuda.streams import Moment, is_capturing, moment_on
from steelyard.runtime.draws import Draws
from steelyard.runtime.dtypes import shape_of

_ROLES = (*ROLES, *CACHED_ROLES)
_NAME = re.compile(rf"(?:.+\.)?(?:{'|'.join(_ROLES)})\.(scale|amax_history|saturated)")
_STATIC = re.compile(rf"(?:(.+)\.)?({'|'.join(('input', *CACHED_ROLES))})\.scale")
SATURATED = ".saturated"
"""How the names of counts of saturated values end."""


class State:
    """Tensors by name, made when a program first asks for them. Programs of a net share one."""

    def __init__(self):
        self.tensors: dict[str, torch.Tensor] = {}
        self._draws = Draws()
        self._used: dict[torch.device, Moment | None] = {}
        """On each GPU: when the last call that read or wrote state there is done."""
        self._shapes: dict[str, tuple[int, ...]] = {}
        """The shapes that programs take."""
        self.calls = 0
        """Calls of the net so far."""
        self.runs = 0
        """Forwards of programs so far, several in a call."""
        self.static_scale: Callable[[str, str], float | None] = _measured
        """The static scale of what has a role in a layer; None if it is measured."""
        self.take_measures: Callable[[object, Mapping[str, torch.Tensor]], None] | None = None
        """What is told which function measured what, if anything is to be measured."""
        self.has_net = True
        """Whether a net says when its calls begin; otherwise each forward of a program is one."""

    @staticmethod
    def shape_of(type_: ir.Type) -> tuple[int, ...]:
        """The shape of a state of this type."""
        return tuple(size or 0 for size in shape_of(type_))

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Record the shape in which a program takes a state; raises `StateError` if another was loaded."""
        self._shapes[name] = shape
        if name in self.tensors:
            self.tensors[name] = _in_shape(name, self.tensors[name], shape)

    def load(self, loaded: Mapping[str, torch.Tensor]) -> None:
        """Take states from a file: all of them, or none if one is wrong; raises `StateError`."""
        self.tensors |= {name: _checked(name, tensor, self._shapes.get(name)) for name, tensor in loaded.items()}

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A state by name, as recipes say it begins."""
        # Made at the first call and not when compiling, where torch would make a fake tensor of it.
        found = self.tensors.get(name)
        return self.tensors.setdefault(name, self._initial(name, shape)) if found is None else found

    def _initial(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        static = _STATIC.fullmatch(name)
        given = self.static_scale(static[1] or "", static[2]) if static else None
        return _initial(name, shape) if given is None else torch.tensor(given, dtype=torch.float32)

    def get_on(self, device: torch.device, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A state by name on a device, where it stays from then on."""
        # Written in place later, which torch forbids for tensors that are made in inference mode.
        with torch.inference_mode(False):
            found = self.get(name, shape)
        if found.device != device:
            self.begin_use(found.device, [found])
            found = self.tensors[name] = found.to(device)
        return found

    def begin_use(self, device: torch.device, tensors: Iterable[torch.Tensor]) -> None:
        """The current stream is about to use states that calls on other streams may still read or write."""
        used = self._used.get(device)
        # A graph that is captured may not wait for what is outside of it.
        if used is not None and not is_capturing(device):
            used.wait(tensors)

    def end_use(self, device: torch.device) -> None:
        """The call has been given to its stream; a captured one runs when its graph is replayed."""
        if not is_capturing(device):
            self._used[device] = moment_on(device)

    def draw(self, reader: object, phase: str) -> torch.Tensor:
        """The random state that a function reads in the forward or in the backward.

        A net in several programs has the bits of one program: all functions of a forward, or of a backward, read the
        same state, and each of them moves it on to the same value. It is another for another call, for a function
        that has read already, and after state was put there from outside.
        """
        return self._draws.read(reader, phase, self.tensors[RNG], self.calls)

    def begin_call(self) -> None:
        """A call of the net begins."""
        self.calls += 1
        self._draws.begin(self.calls)

    def begin_settled_call(self) -> None:
        """A call of the net begins for which everything is compiled."""
        self.calls += 1
        if RNG in self._shapes:
            self._draws.begin(self.calls)

    def put(self, moved: Mapping[str, torch.Tensor]) -> None:
        """Move states on."""
        self.tensors.update(moved)
        if RNG in moved:
            self._draws.leave(moved[RNG])

    def write(self, moved: Mapping[str, torch.Tensor]) -> None:
        """Move states on where they lie: a CUDA graph that is replayed finds them there."""
        torch._foreach_copy_([self.tensors[name] for name in moved], list(moved.values()))  # pyright: ignore[reportPrivateImportUsage]
        if RNG in moved:
            self._draws.leave(self.tensors[RNG])

    def __getstate__(self) -> dict:
        # What a thread has drawn, and what streams have done, is no part of a copy; nor is what a net's settings say.
        apart = ("_draws", "_used", "static_scale", "take_measures")
        return {name: value for name, value in vars(self).items() if name not in apart}

    def __setstate__(self, copied: dict) -> None:
        vars(self).update(copied, _draws=Draws(), _used={}, static_scale=_measured, take_measures=None)


def _measured(_layer: str, _role: str) -> None:
    """The static scale of what has none."""
    return


def _initial(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    if name == RNG:
        # Follows torch.manual_seed, and takes nothing from the generator that others draw from.
        seed = torch.initial_seed()
        return torch.tensor([seed - 2**64 if seed >= 2**63 else seed, 0])
    if name.endswith(".amax_history") or name == "amax_history":
        return torch.zeros(shape)
    if _is_count(name):
        return torch.zeros(shape, dtype=torch.int64)
    return torch.ones(shape)


def _is_count(name: str) -> bool:
    return name.endswith(SATURATED)


def _checked(name: str, tensor: torch.Tensor, shape: tuple[int, ...] | None) -> torch.Tensor:
    """A copy of a loaded state, as kernels read it."""
    found = _NAME.fullmatch(name)
    if name != RNG and found is None:
        known = f"{RNG}, or <layer>.<role>.scale, .amax_history and .saturated with a role of {', '.join(_ROLES)}"
        raise StateError(f"the state of a net has names like {known}, got {name!r}; load the state dict of a net")
    if name == RNG:
        taken = converted(name, tensor, torch.int64)
        _check_shape(name, taken, (2,))
        return taken
    if _is_count(name):
        taken = converted(name, tensor, torch.int64)
        _check_shape(name, taken, ())
        return taken
    taken = converted(name, tensor, torch.float32)
    if found is not None and found.group(1) == "scale":
        # Experts have one each; how many there are is known once a program takes them.
        own = tuple(taken.shape) if taken.dim() == 1 and taken.numel() > 1 else ()
        taken = _in_shape(name, taken, own if shape is None else shape)
        wrong = taken[~(torch.isfinite(taken) & (taken > 0))]
        if wrong.numel():
            wanted = "a finite scale above 0" if taken.dim() == 0 else "finite scales above 0"
            raise StateError(f"{name} must be {wanted}, got {wrong[0].item()}; leave it out to begin with 1")
    elif taken.dim() not in (1, 2) or shape is not None:
        _check_shape(name, taken, shape or (1,))
    return taken


def _in_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A state in its shape; one value is the same in any."""
    if tensor.numel() == math.prod(shape) == 1:
        return tensor if tuple(tensor.shape) == shape else tensor.reshape(shape)
    _check_shape(name, tensor, shape)
    return tensor


def converted(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy in another dtype that has the same values; raises `StateError` if there is none."""
    if not isinstance(tensor, torch.Tensor):
        raise StateError(f"{name} must be a tensor of {dtype}, got {type(tensor).__name__}; load it as it was saved")
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta or not has_memory(tensor):
        raise StateError(f"{name} must be a dense tensor with values, got {shown(tensor)}; load it as it was saved")
    # Codes that were cast with a whole checkpoint are whole numbers still; other integers may have lost digits.
    is_whole = dtype.is_floating_point or dtype == torch.uint8 or not tensor.is_floating_point()
    is_number = is_whole and not tensor.is_complex() and not tensor.is_quantized
    taken = tensor.detach().to(dtype, copy=True) if is_number else None
    if taken is None or not _equal(taken, tensor.detach()):
        raise StateError(
            f"{name} must hold values of {dtype}, got {tensor.dtype} of shape {tuple(tensor.shape)} with others; "
            "load it as it was saved"
        )
    return taken


def _equal(taken: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether two tensors have the same values, NaN included, in whatever dtypes."""
    if tensor.is_floating_point():
        return torch.allclose(taken.double(), tensor.double(), rtol=0, atol=0, equal_nan=True)
    return torch.equal(taken.to(tensor.dtype), tensor)


def _check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise StateError(
            f"{name} must have the shape {shape}, got {tensor.dtype} of shape {tuple(tensor.shape)}; load the state of "
            "a net with the same recipe, or leave it out"
        )
