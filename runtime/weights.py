"""Quantized weights, kept until their parameters change."""

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook

from steelyard.forks import make_lock
from steelyard.ir.renaming import Renaming
from steelyard.ir.weights import WeightForm, renamed_key
from steelyard.runtime import _cpu
from steelyard.runtime.cuda.streams import Moment, is_capturing, moment_on

Make = Callable[..., tuple]
"""From a parameter, and its scale where that is state, to the parts of the quantized weight."""

_PLAIN = (torch.nn.Parameter, torch.Tensor)
_optimizer_steps = 0


def _count_step(*_) -> None:
    global _optimizer_steps
    _optimizer_steps += 1


# Fused optimizers write parameters without moving their version, so a step of any optimizer counts as a write of all
# parameters that are not frozen.
register_optimizer_step_post_hook(_count_step)


@dataclass
class WeightArgument:
    """Arguments of a program that are made from others and kept."""

    key: str
    """Equal for weights that are made alike, in whatever program."""
    make: Make
    sources: list[int]
    """Which arguments they are made from: the parameter, and its scale where that is state."""
    parameter: str = ""
    """The name of the parameter."""
    states: tuple[str, ...] = ()
    """The names of the state among the sources."""
    form: WeightForm | None = None
    """What a parameter that is quantized already must hold to be it."""
    is_trained: bool = False
    """Whether the program has a backward, so that the parameter is about to be written."""
    maker: str = ""
    """The name of the function that makes it."""

    def bound_to(self, renaming: Renaming, makers: Mapping[str, Make]) -> "WeightArgument":
        """The same of another parameter."""
        states = tuple(map(renaming.state, self.states))
        return replace(
            self,
            key=renamed_key(self.key, states),
            make=makers[self.maker],
            parameter=renaming.parameter(self.parameter),
            states=states,
        )


@dataclass
class _Kept:
    parts: tuple
    stamp: tuple | None
    parameter: weakref.ref
    storages: list[StorageWeakRef]
    """While these live, no other storage has the address that the stamp holds."""
    made: Moment | None = None
    """On a GPU: when its stream has made the parts."""


class _Held(NamedTuple):
    """What a quantized parameter was found to hold."""

    parameter: weakref.ref
    fields: list[tuple[str, torch.Tensor]]
    """Its tensors: while it has these, the parts are in their memory, or were made from them."""
    parts: tuple
    versions: list[object] | None = None
    """If parts were made, of which versions of its tensors."""
    made: Moment | None = None
    """On a GPU: when its stream has made them."""

    def is_of(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter holds this now."""
        own = vars(parameter)
        is_same = self.parameter() is parameter and all(own[name] is tensor for name, tensor in self.fields)
        return is_same and (self.versions is None or self.versions == _versions(parameter, self.fields))


@dataclass(eq=False, slots=True, weakref_slot=True)
class Found:
    """The weights of a reader as they were found: it lives until one of them is made again, or forgotten."""

    parts: list[Any]
    stamps: Any
    """What the parameters were like."""
    steps: int
    """How many steps optimizers had made."""
    positions: frozenset[int]
    """Which arguments the parameters are."""
    held: Sequence[tuple[int, _Held]] = ()
    """By argument, what parameters hold that are quantized already."""

    def holds(self, arguments: tuple) -> bool:
        """Whether arguments have the same parameters, and nobody wrote those."""
        is_same = self.steps == _optimizer_steps and self.stamps.hold(arguments)
        return is_same and all(held.is_of(arguments[position]) for position, held in self.held)

    def has(self, position: int) -> bool:
        """Whether an argument is one of the parameters."""
        return position in self.positions


class Weights:
    """The quantized weights of a net, for all its programs: each parameter is quantized once per scheme and write."""

    def __init__(
        self,
        is_rewritten: Callable[[torch.Tensor], bool] = lambda parameter: False,
        watch: Callable[[int], AbstractContextManager] = lambda done: nullcontext(),
    ):
        self._is_rewritten = is_rewritten
        """Whether a parameter's memory is written without a trace: such a weight is never kept."""
        self._watch = watch
        """The context in which a weight is made for the first time, given how many were."""
        self._rewritten: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self._held: dict[tuple[str, int], _Held] = {}
        self._kept: dict[tuple[str, int], _Kept] = {}
        self._keys: dict[int, set[tuple[str, int]]] = {}
        """What may be kept of each parameter, by its id."""
        self._lock = make_lock()
        self._found: weakref.WeakKeyDictionary[Any, Found] = weakref.WeakKeyDictionary()
        """What readers found, while nothing changes."""
        self._bound: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        """What owners know by weak references, with weights bound to it, while nothing changes."""
        self._changes = 0
        """How often something was made again, or forgotten."""
        self.holds_packed = True
        """Whether what is packed of a quantized parameter is kept beside it; not if that is about to be replaced."""
        self._captured: list[tuple] = []
        """Weights that CUDA graphs read, which must live as long as anybody may replay those."""

    def find(self, reader: Hashable, weights: Sequence[WeightArgument], arguments: tuple) -> list[Any]:
        """The parts of all weights that a reader takes from some arguments.

        One look at all parameters, if those were found before, costs a tenth of what a look at each does.
        """
        found = self._found.get(reader)
        if found is not None and found.holds(arguments):
            return found.parts
        found = Found([], _cpu.Stamps(), _optimizer_steps, frozenset(weight.sources[0] for weight in weights))
        is_plain, changes = True, self._changes
        for weight in weights:
            parameter = arguments[weight.sources[0]]
            is_plain = is_plain and _has_stamp(parameter)
            if is_plain:
                found.stamps.add(weight.sources[0], parameter, parameter.untyped_storage().nbytes())
            found.parts.extend(self.get(weight, [arguments[i] for i in weight.sources]))
            is_plain = is_plain and (weight.key, id(parameter)) in self._kept
        # What was just made may be made again before it is read again.
        if is_plain and changes == self._changes:
            self._found[reader] = found
        return found.parts

    def stamped(self, parameters: Sequence[torch.Tensor]) -> Found | None:
        """What tells whether somebody wrote parameters since; None if nothing does."""
        held: list[tuple[int, _Held]] = []
        found = Found([], _cpu.Stamps(), _optimizer_steps, frozenset(range(len(parameters))), held)
        for position, parameter in enumerate(parameters):
            if self._is_rewritten(parameter):
                return None
            if _has_stamp(parameter):
                found.stamps.add(position, parameter, parameter.untyped_storage().nbytes())
                continue
            fields = _fields_of(parameter)
            if not fields or any(tensor.is_inference() for tensor in (parameter, *(tensor for _, tensor in fields))):
                return None
            own = _Held(weakref.ref(parameter), fields, (), _versions(parameter, fields))
            held.append((position, own))
        return found

    def found(self, reader: Hashable) -> Found | None:
        """What a reader found when it last looked, if nothing changed since.

        Remember it by a weak reference only: when something changes, its parts make room for others.
        """
        return self._found.get(reader)

    def keep_until_change(self, owner: Hashable, bound: list[Any]) -> None:
        """Hold what has weights bound to it, for an owner, until one of all weights is made again, or forgotten.

        Its weights make room for others then, so nobody else may hold it for longer than a call.
        """
        self._bound[owner] = bound

    def _forget_found(self) -> None:
        """Something that is kept is about to change."""
        self._changes += 1
        self._found.clear()
        self._bound.clear()

    def get(self, weight: WeightArgument, sources: Sequence[Any]) -> tuple:
        """The parts of a weight, made again if its parameter was written since."""
        parameter = sources[0]
        key = weight.key, id(parameter)
        if type(parameter) not in _PLAIN:
            return self._get_held(key, weight, sources)
        # An updated scale waits for the next write: a weight is quantized once for all steps in between.
        steps = _optimizer_steps if parameter.requires_grad else None
        stamp = (steps, *_stamp(parameter))
        kept = self._find(key, stamp, parameter)
        if kept is None and is_capturing(parameter.device):
            return weight.make(*sources)  # nobody but the graph may read it: its replays make it
        if kept is None:
            kept = self._keep(key, stamp, weight, sources)
        if kept.made is None:
            return kept.parts
        if not is_capturing(parameter.device):
            kept.made.wait(_tensors_of(kept.parts))
            return kept.parts
        # Replays cannot look weights up: they quantize trained ones again.
        if weight.is_trained:
            return weight.make(*sources)
        self._captured.append(kept.parts)
        return kept.parts

    def _find(self, key: tuple[str, int], stamp: tuple, parameter: torch.Tensor) -> _Kept | None:
        """What is kept of a parameter, if it was not written since."""
        kept = self._kept.get(key)
        return kept if kept is not None and kept.stamp == stamp and kept.parameter() is parameter else None

    def _keep(self, key: tuple[str, int], stamp: tuple, weight: WeightArgument, sources: Sequence[Any]) -> _Kept:
        parameter = sources[0]
        if self._rewritten.get(id(parameter)) is parameter or self._is_rewritten(parameter):
            self._rewritten[id(parameter)] = parameter
            return _Kept(weight.make(*sources), None, weakref.ref(parameter), [])
        # Two threads must not quantize one weight at once.
        with self._lock:
            kept = self._find(key, stamp, parameter)
            if kept is None:
                self._forget_found()
                storages = [StorageWeakRef(source.untyped_storage()) for source in sources]
                # What was kept goes first, so that the new parts find its memory.
                is_first = self._kept.pop(key, None) is None
                self._drop_outdated(id(parameter), stamp)
                self._keys.setdefault(id(parameter), set()).add(key)
                with self._watch(len(self._kept)) if is_first else nullcontext():
                    parts = weight.make(*sources)
                reference = weakref.ref(parameter, lambda gone: self._drop(key, gone))
                kept = self._kept[key] = _Kept(parts, stamp, reference, storages, moment_on(parameter.device))
        return kept

    def _get_held(self, key: tuple[str, int], weight: WeightArgument, sources: Sequence[Any]) -> tuple:
        """The parts of a parameter that is quantized already."""
        parameter = sources[0]
        held = self._held.get(key)
        if held is None or not held.is_of(parameter):
            parts = _parts_of(weight, sources)
            held = self._hold(key, weight, parameter, parts)
            if held is None:
                return parts
        if held.made is not None and is_capturing(parameter.device):
            self._captured.append(held.parts)
        elif held.made is not None:
            held.made.wait(_tensors_of(held.parts))
        return held.parts

    def _hold(self, key: tuple[str, int], weight: WeightArgument, parameter: Any, parts: tuple) -> _Held | None:
        """Remember the parts of a quantized parameter, if they are in its memory or in the layout of GEMMs."""
        fields = _fields_of(parameter)
        addresses = {part.data_ptr() for _, part in fields}
        reference = weakref.ref(parameter, lambda _: self._held.pop(key, None))
        if all(part.data_ptr() in addresses for part in parts):
            held = _Held(reference, fields, parts)
        elif not self._holds_made(weight.form) or is_capturing(parameter.device):
            return None
        else:
            held = _Held(reference, fields, parts, _versions(parameter, fields), moment_on(parameter.device))
        self._held[key] = held
        return held

    def _holds_made(self, form: WeightForm | None) -> bool:
        """Whether parts are kept that were made from those of a quantized parameter."""
        return form is not None and (form.layout == "gemm" or (form.layout == "packed" and self.holds_packed))

    def _drop_outdated(self, parameter: int, stamp: tuple) -> None:
        """Let go of what other forms of a parameter were made from before it was written, or got another dtype."""
        for key in self._keys.get(parameter, ()):
            kept = self._kept.get(key)
            if kept is not None and kept.stamp != stamp:
                self._kept.pop(key, None)

    def _drop(self, key: tuple[str, int], gone: weakref.ref) -> None:
        """Let go of a parameter's weight when it dies, unless another has its id by now."""
        self._forget_found()
        self._keys.pop(key[1], None)
        kept = self._kept.get(key)
        if kept is not None and kept.parameter is gone:
            self._kept.pop(key, None)

    def forget(self) -> None:
        """Quantize every weight again at the next call, and arrange again what is quantized already."""
        with self._lock:
            self._forget_found()
            self._kept.clear()
            self._keys.clear()
            self._held.clear()

    def nbytes(self) -> int:
        """Bytes that the kept weights take, beside those of quantized parameters."""
        tensors = [tensor for kept in list(self._kept.values()) for tensor in _tensors_of(kept.parts)]
        for held in list(self._held.values()):
            own = {tensor.data_ptr() for _, tensor in held.fields}
            tensors += [part for part in held.parts if part.data_ptr() not in own]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _has_stamp(parameter: Any) -> bool:
    """Whether writes to a parameter can be told by its version, its memory and some words of it."""
    return type(parameter) in _PLAIN and parameter.is_cpu and not parameter.is_inference() and parameter.data_ptr() != 0


def _fields_of(parameter: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors that a quantized parameter holds, by name; none of any other parameter."""
    names = getattr(parameter, "PARTS", ())
    return [(name, part) for name in names if (part := vars(parameter)[name]) is not None]


def _version(tensor: torch.Tensor) -> object:
    """What differs once a tensor was written; that of an inference tensor, whose writes nobody counts, always does."""
    return object() if tensor.is_inference() else tensor._version


def _versions(parameter: torch.Tensor, fields: list[tuple[str, torch.Tensor]]) -> list[object]:
    """Those of a quantized parameter, which writes to it move, and of its tensors, which others may write to."""
    return [_version(tensor) for tensor in (parameter, *(tensor for _, tensor in fields))]


def _tensors_of(parts: tuple) -> list[torch.Tensor]:
    """The tensors that parts consist of, those of a user's own quantizer too."""
    return [t for part in parts for t in ([part] if isinstance(part, torch.Tensor) else part.tensors())]


def _parts_of(weight: WeightArgument, sources: Sequence[Any]) -> tuple:
    """The parts that a quantized parameter holds; one in another format is decoded and quantized at every call."""
    parameter, form = sources[0], weight.form
    read = getattr(parameter, "weight_parts", None)
    if read is None:
        return weight.make(*sources)
    parts = None
    if form is not None:
        layout = {"layout": form.layout, "multiples": form.multiples}
        parts = read(form.scheme, is_transposed=form.is_transposed, **layout)
    return weight.make(parameter.dequantize(), *sources[1:]) if parts is None else parts


def _stamp(tensor: torch.Tensor) -> tuple:
    """What differs once a tensor was written: its version, its memory, or some words of it.

    Nothing counts writes through `.data`: a few sampled words show most of them, but not all. Reading words of a GPU's
    memory would wait for all that it has to do, so that such writes go unnoticed there: `net.requantize()` is for them.
    """
    storage = tensor.untyped_storage()
    address = storage.data_ptr()
    words = _cpu.fingerprint(address, storage.nbytes()) if address and tensor.is_cpu else 0
    return _version(tensor), storage._cdata, tensor.data_ptr(), tensor.dtype, words
