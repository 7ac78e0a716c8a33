"""Predicted speeds of kernels and GEMMs, on paper: `benchmarks/predict_gpu.py` writes them, and none was measured."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Prediction:
    """A rate for one GPU, by its name: GB/s of what a kernel must move, or TFLOP/s."""

    gpu: str
    rate: float
    unit: str
    limit: str
    """The resource that decides."""

    def __str__(self) -> str:
        return f"predicted {self.rate:.0f} {self.unit} for {self.gpu}"


def prediction_of(target: str, row: str) -> Prediction | None:
    """What is predicted for a row that `steelyard verify-gpu` prints; None where nothing is."""
    of_target = _predictions()["targets"].get(target, {"rows": {}})
    found = of_target["rows"].get(row)
    if found is None:
        return None
    return Prediction(of_target["gpu"], found["rate"], found["unit"], found["limit"])


@cache
def _predictions() -> dict[str, Any]:
    return json.loads(FILE.read_text())
