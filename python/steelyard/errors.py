"""The errors that users see.

Each class says whose fault it is. Each message says what must hold, what was found, where, and what to do.
"""

_LONGEST = 120


def require(holds: bool, constraint: str, message: str) -> None:
    """Raise a `ConstraintError` unless something holds."""
    if not holds:
        raise ConstraintError(constraint, message)


def shown(value: object) -> str:
    """A value as errors show it, in one line: whatever it is, showing it must neither fail nor fill a page."""
    kind = type(value).__name__
    try:
        text = repr(value)
    except Exception:
        return f"a {kind}"
    return text if len(text) <= _LONGEST and "\n" not in text else f"a {kind}"


class SteelyardError(Exception):
    """Base of every error that Steelyard raises on purpose."""


class SteelyardWarning(UserWarning):
    """Something runs, but not as was asked for: in high precision, for instance."""


class UnsupportedModelError(SteelyardError):
    """The model has something that cannot be compiled."""


class UnsupportedOpError(UnsupportedModelError):
    """An op of the model cannot be compiled; `steelyard.compile` leaves the graph around it to torch, and warns."""

    def __init__(self, op: str, layer: str, source: str, cause: str):
        self.op, self.layer, self.source, self.cause = op, layer, source, cause
        place = f"layer '{layer}'" if layer else "the model"
        place = f"{place} at {source}" if source else place
        super().__init__(f"{place}: {op} cannot be compiled: {cause}")


class StateError(SteelyardError, ValueError):
    """State that is loaded into a net is not what its programs can read."""


class CheckpointError(SteelyardError, ValueError):
    """A folder is not the checkpoint that its config says, or has a format that cannot be run."""


class ResultError(SteelyardError, ValueError):
    """What is read as a result of measuring is not what its schema says."""


class RecipeError(SteelyardError, ValueError):
    """A recipe, an override or a quantizer is wrong."""


class IRError(SteelyardError):
    """A piece of IR, or a pipeline over it, is wrong."""


class ConstraintError(IRError, ValueError):
    """A named constraint of the dialect does not hold; `constraint` is its name, such as `gemm_c2`."""

    def __init__(self, constraint: str, message: str):
        super().__init__(f"{message} [{constraint}]")
        self.constraint = constraint


class AssemblyError(IRError):
    """A text is not what the dialect's syntax asks for; `line` and `column` count from 1, columns in bytes."""

    def __init__(self, message: str, line: int, column: int):
        super().__init__(f"{line}:{column}: {message}" if line else message)
        self.message, self.line, self.column = message, line, column


class PipelineError(IRError):
    """The text of a pass pipeline is wrong; nothing was run."""


class TargetError(SteelyardError):
    """A target is unknown, or does not support what was asked for."""


class NonFiniteError(SteelyardError, ArithmeticError):
    """With `check_finite=True`: an operand of a GEMM holds an infinity or a NaN."""


class FileError(SteelyardError, OSError):
    """A file, a folder or standard output cannot be read or written."""


class InternalError(SteelyardError):
    """A bug in Steelyard: please report it."""
