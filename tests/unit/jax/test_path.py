"""Which implementation a program uses."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import steelyard.jax as sj
from steelyard.errors import TargetError
from steelyard.jax import native

X = jnp.ones((32, 64))


def program(path: str) -> str:
    with sj.use_path(path):
        return jax.jit(lambda x: sj.quantize(x, sj.ScalingMode.MXFP8_1D_SCALING)).lower(X).as_text()


def test_native_handlers_run_on_a_cpu_without_callbacks():
    for path in ("auto", "native"):
        text = program(path)
        assert text.count("custom_call @steelyard_quantize") == 1
        assert "callback" not in text


def test_the_reference_has_no_custom_call():
    assert "custom_call" not in program("reference")


def test_without_the_native_module_the_reference_is_selected(monkeypatch):
    native.is_available.cache_clear()
    monkeypatch.setitem(sys.modules, "steelyard.jax._ffi", None)
    try:
        assert sj.traced_path() == "reference"
        assert "custom_call" not in program("auto")
        with pytest.raises(TargetError, match="native"), sj.use_path("native"):
            sj.traced_path()
    finally:
        native.is_available.cache_clear()


def test_a_dense_program_has_one_call_an_operation_and_no_copies_of_codes():
    quantizers = sj.QuantizerSet.from_recipe("mxfp8")
    step = jax.jit(jax.grad(lambda x, w: sj.dense(x, w, None, quantizers).sum(), argnums=(0, 1)))
    text = step.lower(X, jnp.ones((64, 32))).compile().as_text()
    calls = [line for line in text.splitlines() if "custom-call(" in line]
    # x, the kernel and dy are quantized once each; the forward product is not needed for gradients.
    assert len([line for line in calls if '"steelyard_quantize"' in line]) == 3
    assert len([line for line in calls if '"steelyard_gemm"' in line]) == 2
    assert not [line for line in text.splitlines() if " copy(" in line and "f8e4m3fn" in line]


def test_an_unknown_path_is_refused():
    with pytest.raises(TargetError, match="got 'gpu'"), sj.use_path("gpu"):
        pass


def test_importing_steelyard_jax_imports_no_torch():
    code = "import steelyard.jax, sys; assert 'torch' not in sys.modules and 'flax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_jax_the_error_names_the_extra():
    code = "import sys; sys.modules['jax'] = None\nimport steelyard.jax"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "install steelyard[jax]" in run.stderr
