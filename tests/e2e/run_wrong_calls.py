"""Calls of the public API with wrong arguments: `python run_wrong_calls.py SEED COUNT` prints every bad answer.

A call takes arguments that are right, and replaces one or two of them. A good answer is a result, one of Steelyard's
own errors, or another error that a check raised on purpose. `=NUMBER` for a count repeats one call, with its traceback.
A third argument leaves the calls whose name has it.
"""

import faulthandler
import os
import random
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import wrong_values as values
from wrong_calls import ROOTS, Call, scratch_folder, torch_calls
from wrong_jax_calls import jax_calls

from steelyard.errors import InternalError, SteelyardError

SECONDS = 120
"""A call that takes longer hangs."""
_BINDING = re.compile(r"\(\) (missing|got an unexpected keyword|got multiple values|takes|got some positional)")


@dataclass
class Made:
    """A call with its arguments."""

    description: str
    run: Callable[[], Any]
    run_plain: Callable[[], Any] | None

    def is_plain_error(self, error: BaseException) -> bool:
        """Whether the plain model raises such an error, too."""
        if self.run_plain is None:
            return False
        try:
            self.run_plain()
        except Exception as found:
            return type(found) is type(error)
        return False


def make_call(calls: list[Call], seed: int, number: int) -> Made:
    """A call of a seed."""
    draw = random.Random(f"{seed}:{number}")
    torch.manual_seed(number)
    call = draw.choices(calls, [call.weight for call in calls])[0]
    arguments = [make(draw) for make in call.arguments]
    chosen = {name: make for name, make in call.keywords.items() if draw.random() < 0.7}
    keywords = {name: make(draw) for name, make in chosen.items()}
    places: list[Any] = [*range(len(arguments)), *keywords]
    replaced = []
    for place in draw.sample(places, k=min(draw.choice([1, 1, 1, 2]), len(places))):
        name, value = values.pick(draw)
        if name == "recursive" and call.plain is not None:
            # torch.compile itself never ends on a list that holds itself.
            continue
        (arguments if isinstance(place, int) else keywords)[place] = value
        replaced.append(f"{place}={name}")
    if draw.random() < 0.03:
        name, value = values.pick(draw)
        arguments.append(value)
        replaced.append(f"one more: {name}")
    function, plain = call.function(draw), None if call.plain is None else call.plain(draw)
    return Made(
        f"{call.name} with {', '.join(replaced) or 'right arguments'}",
        lambda: function(*arguments, **keywords),
        None if plain is None else lambda: plain(*arguments, **keywords),
    )


def what_is_wrong(error: BaseException) -> str:
    """Why an error is a bad answer; empty for a good one."""
    found = f"{type(error).__name__}: {str(error)[:300]}"
    if isinstance(error, InternalError) or not str(error).strip():
        return found
    if isinstance(error, SteelyardError):
        return ""
    if isinstance(error, ArithmeticError) and "a user's function" in str(error):
        return ""
    # Where torch is built without CUDA, not even tensors that stand for others can be computed with there.
    if isinstance(error, RuntimeError) and "not linked with support for cuda" in str(error):
        return ""
    # The handlers of XLA check what may be known only when a program runs.
    if type(error).__name__ == "JaxRuntimeError" and str(error).startswith("INVALID_ARGUMENT: group_sizes must"):
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    # Python itself refuses arguments that do not fit a signature: at the call, or where a constructor passes them on.
    inside = sum(frame.filename.startswith(ROOTS) for frame in frames)
    if isinstance(error, TypeError) and _BINDING.search(str(error)) and inside <= 1:
        return ""
    is_ours = bool(frames) and frames[-1].filename.startswith(ROOTS)
    if is_ours and (frames[-1].line or "").startswith("raise ") and isinstance(error, TypeError | ValueError):
        return ""
    place = f" at {frames[-1].filename}:{frames[-1].lineno} {frames[-1].line}" if frames else ""
    return found + place


def run(seed: int, numbers: list[int], *, show: bool = False, like: str = "") -> int:
    """Run calls of a seed; returns how many answers are bad, after a line for each."""
    calls, bad = [call for call in (*torch_calls(), *jax_calls()) if like in call.name], 0
    for number in numbers:
        # If the process dies, its last line says where.
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        made = make_call(calls, seed, number)
        print(f"at {number}: {made.description}", file=sys.stderr, flush=True)
        try:
            made.run()
        except BaseException as error:
            if show:
                traceback.print_exc()
            wrong = what_is_wrong(error)
            if wrong and not made.is_plain_error(error):
                bad += 1
                print(f"{number}: {made.description}: {wrong}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    return bad


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # A name that is taken for a path ends up there.
    os.chdir(scratch_folder())
    seed, which, *like = sys.argv[1:]
    numbers = [int(which.removeprefix("="))] if which.startswith("=") else list(range(int(which)))
    bad = run(int(seed), numbers, show=which.startswith("="), like="".join(like))
    print(f"{bad} bad answers of {len(numbers)}")
