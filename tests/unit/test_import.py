"""`import steelyard` is light."""

import json
import subprocess
import sys


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


def test_import_loads_no_framework():
    assert not modules_after("import steelyard") & {"torch", "torch_mlir", "jax", "numpy"}


def test_dialect_and_passes_load_no_torch():
    assert not modules_after("import steelyard.dialect, steelyard.passes") & {"torch", "jax"}


def test_native_module_loads_beside_torch_and_mlir():
    loaded = modules_after("import torch, torch_mlir.ir, steelyard.runtime._cpu, steelyard.dialect")
    assert {"torch", "torch_mlir.ir", "steelyard.runtime._cpu"} <= loaded
