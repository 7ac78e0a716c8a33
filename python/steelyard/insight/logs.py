"""What is measured during training as scalars, to TensorBoard, to something like wandb, or to a CSV file."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from steelyard.errors import FileError, RecipeError, shown
from steelyard.files import failure
from steelyard.insight.results import Measurement

Write = Callable[[int, Mapping[str, float]], None]
_HEADER = ["step", "name", "value"]


def scalars(measured: Measurement) -> dict[str, float]:
    """The scalars of one step, by name: `steelyard/<layer>/<kind>/<role>/amax`. Names do not change between versions.

    Each operand has `amax`, `scale`, `saturated`, `flushed` and `snr_db`; each GEMM `relative_error`; those of the
    backward `gradient_norm`, `gradient_cosine` and `gradient_underflow`. What is not known is left out.
    """
    found: dict[str, float | None] = {}
    for row in measured.rows:
        if not row.operands and row.relative_error is None:
            continue
        # A layer that is called again has numbers.
        prefix = f"steelyard/{row.layer or 'model'}/{row.kind}{f'.{row.number}' if row.number else ''}"
        found[f"{prefix}/relative_error"] = row.relative_error
        for number, operand in enumerate(row.operands):
            is_second = number > 0 and row.operands[0].role == operand.role
            name = f"{prefix}/{operand.role}{'.1' if is_second else ''}"
            found[f"{name}/amax"] = operand.amax
            found[f"{name}/scale"] = operand.scale
            found[f"{name}/saturated"] = operand.saturated_share
            found[f"{name}/flushed"] = operand.flushed_share
            found[f"{name}/snr_db"] = operand.snr_db
        if row.gradient is not None:
            found[f"{prefix}/gradient_norm"] = row.gradient.norm
            found[f"{prefix}/gradient_cosine"] = row.gradient.cosine
            found[f"{prefix}/gradient_underflow"] = row.gradient.underflow_share
    return {name: value for name, value in found.items() if value is not None}


def make_write(writer: Any) -> Write:
    """What writes the scalars of a step to a writer; raises `RecipeError` for what is none."""
    if isinstance(writer, str | Path):
        return _write_csv(Path(writer))
    if callable(getattr(writer, "add_scalar", None)):
        return lambda step, found: _add_scalars(writer, step, found)
    if callable(getattr(writer, "log", None)):
        return lambda step, found: writer.log(dict(found), step=step)
    raise RecipeError(
        "log_to needs a SummaryWriter (add_scalar), something like wandb (log), or the path of a CSV file, got "
        f"{shown(writer)}"
    )


def _add_scalars(writer: Any, step: int, found: Mapping[str, float]) -> None:
    for name, value in found.items():
        writer.add_scalar(name, value, step)


def _write_csv(path: Path) -> Write:
    """Rows of step, name and value, behind those that are there already."""
    _begin_csv(path)

    def write(step: int, found: Mapping[str, float]) -> None:
        try:
            with path.open("a", newline="") as file:
                csv.writer(file).writerows([step, name, repr(value)] for name, value in found.items())
        except OSError as error:
            raise failure(f"cannot write '{path}'", error) from error

    return write


def _begin_csv(path: Path) -> None:
    try:
        with path.open("a+", newline="") as file:
            file.seek(0)
            first = next(csv.reader(file), None)
            if first is None:
                csv.writer(file).writerow(_HEADER)
    except OSError as error:
        raise failure(f"cannot write '{path}'", error) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileError(f"'{path}' must be a CSV file: {error}; choose another path") from error
    if first not in (None, _HEADER):
        wanted, got = ",".join(_HEADER), ",".join(first or ())
        raise FileError(f"'{path}' must begin with {wanted}, got {shown(got)}; choose another path")
