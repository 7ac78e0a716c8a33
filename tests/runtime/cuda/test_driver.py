"""The host code, through cuda-bindings and a mock driver that executes the PTX and checks every access."""

import re
import shutil
import subprocess
import sys

import mock_driver
import pytest
import torch
from kernel_cases import assert_same_copy, nvfp4, operands, same_values, scheme_pairs
from mock_heap import Heap
from ptx_text import PtxError

from steelyard import reference
from steelyard.codegen.copies import Copy
from steelyard.codegen.quantize import QuantizeKernel
from steelyard.codegen.sources import Source
from steelyard.errors import TargetError
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu
from steelyard.runtime.cuda.kernels import Kernels

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build the mock with")

MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU"), Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")
TILE = (Scheme("f8E4M3FN", "128x128", "f32"),) * 2


@pytest.fixture
def heap():
    with Heap() as mode:
        yield mode


@pytest.fixture
def start(library, heap):
    """Makes kernels on a device of some compute capability, and their driver."""
    from steelyard.runtime.cuda.driver import CudaLauncher

    def make(capability=(9, 0)):
        driver = mock_driver.MockDriver(library, heap, capability)
        return Kernels(CudaLauncher(0, lambda: heap.streams.current.cuda_stream)), driver

    return make


CAPABILITIES = {
    (8, 9): "sm_89",
    (9, 0): "sm_90a",
    (10, 0): "sm_100a",
    (10, 3): "sm_103a",
    (12, 0): "sm_120a",
    (12, 1): "sm_121a",
}


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_kernels_run_through_the_driver(start, heap, capability):
    kernels, driver = start(capability)
    x = torch.randn(70, 90)
    side = heap.streams.make()
    with heap.streams.use(side):
        for copies in zip(kernels.quantize(x, *MX), reference.quantize(x, *MX), strict=True):
            assert_same_copy(*copies)
    assert [f".target {CAPABILITIES[capability]}\n" in text for text in driver.texts] == [True]
    assert {stream for _, _, stream in driver.launches} == {side.cuda_stream}


@pytest.mark.parametrize("pair", [scheme_pairs()[2], (nvfp4(), nvfp4(rht=True)), TILE], ids=["delayed", "rht", "tile"])
def test_copies_of_several_launches(start, pair):
    kernels, _ = start()
    x = torch.randn(130, 144).bfloat16()
    given = operands(*pair)
    found, expected = kernels.quantize(x, *pair, **given), reference.quantize(x, *pair, **given)
    for copy, expected_copy in zip(found, expected, strict=True):
        assert_same_copy(copy, expected_copy)
        assert same_values(kernels.dequantize(copy), reference.dequantize(expected_copy))


def test_a_kernel_is_loaded_once(start):
    kernels, driver = start()
    x = torch.randn(8, 32)
    for _ in range(3):
        kernels.quantize(x, MX[0], None)
    assert len(driver.texts) == 1
    assert len(driver.launches) == 3


def test_a_kernel_that_is_loaded_before_launches_at_once(start, heap):
    kernels, driver = start()
    x = torch.randn(8, 32)
    kernels.quantize(x, MX[0], None)
    kernel = QuantizeKernel(Source("f32"), (Copy(MX[0], columnwise=False, aligned=True),))
    for _ in range(2):
        kernels.launch.load([kernel])
    assert len(driver.texts) == 1
    kernels, driver = start()
    kernels.launch.load([kernel])
    heap.streams.is_capturing = True
    found, _ = kernels.quantize(x, MX[0], None)
    heap.streams.is_capturing = False
    assert_same_copy(found, reference.quantize(x, MX[0], None)[0])
    assert len(driver.texts) == 1


def test_a_kernel_that_a_graph_launches_first_is_refused(start, heap):
    kernels, driver = start()
    x = torch.randn(8, 32)
    heap.streams.is_capturing = True
    with pytest.raises(TargetError, match=r"quantize_f32_\w+ must be loaded before .* call the net .* then capture"):
        kernels.quantize(x, MX[0], None)
    assert not driver.texts
    heap.streams.is_capturing = False
    assert_same_copy(kernels.quantize(x, MX[0], None)[0], reference.quantize(x, MX[0], None)[0])


def test_a_kernel_is_not_loaded_while_another_stream_is_captured(start, monkeypatch):
    """What the driver says of its default stream then."""
    from cuda.bindings import driver as bindings

    kernels, driver = start()
    implicit = bindings.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    monkeypatch.setattr(bindings, "cuStreamIsCapturing", lambda stream: (implicit, None))
    with pytest.raises(TargetError, match="must be loaded before a CUDA graph is captured"):
        kernels.quantize(torch.randn(8, 32), MX[0], None)
    assert not driver.texts


def test_the_mock_refuses_to_load_during_a_capture(start, heap, monkeypatch):
    kernels, _ = start()
    monkeypatch.setattr(type(kernels.launch), "_refuse_capture", lambda *_: None)
    heap.streams.is_capturing = True
    with pytest.raises(TargetError, match="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        kernels.quantize(torch.randn(8, 32), MX[0], None)


@pytest.mark.parametrize(
    "said", ["ptxas application ptx input, line 9; fatal   : Unsupported .version 8.1", "x" * 9000]
)
def test_what_the_compiler_of_the_driver_says_is_in_the_error(start, said):
    kernels, driver = start()
    driver.refusal = said
    message = r"must load quantize_f32_\w+ for sm_90a, got CUDA_ERROR_INVALID_PTX; its compiler said: (.*); if it"
    with pytest.raises(TargetError, match=message) as error:
        kernels.quantize(torch.randn(8, 32), MX[0], None)
    found = re.search(message, str(error.value))
    assert found is not None
    assert said.startswith(found[1])
    assert len(found[1]) == min(len(said), 8191)


INPUTS = torch.linspace(-3, 3, 40 * 64).reshape(40, 64), torch.linspace(-1, 2, 64), torch.linspace(2, 0, 64), 1e-5
NORMED = cpu.quantize_produced("layer_norm", INPUTS, *MX, dtype=torch.float32)


def test_a_norm_and_its_quantize(start):
    kernels, driver = start((10, 0))
    on_device = [x.clone() if isinstance(x, torch.Tensor) else x for x in INPUTS]
    found = kernels.quantize_produced("layer_norm", tuple(on_device), *MX)
    for copies in zip(found, NORMED, strict=True):
        assert_same_copy(*copies)
    assert [name.split("_")[0] for name, _, _ in driver.launches] == ["row", "quantize"]


def test_an_error_of_the_driver_names_the_kernel(start, heap):
    kernels, driver = start()
    x = torch.randn(8, 32)
    heap.streams.synchronize()
    heap.memory.release(x.untyped_storage().data_ptr())
    kernels.quantize(x, MX[0], None)
    with pytest.raises(PtxError, match="memory"):
        heap.streams.synchronize()
    message = r"cuLaunchKernel of quantize_f32.* CUDA_ERROR_LAUNCH_FAILED .* an earlier launch"
    with pytest.raises(TargetError, match=message):
        kernels.quantize(x, MX[0], None)
    assert driver.failure is not None


def test_a_device_without_kernels_is_refused(start):
    with pytest.raises(TargetError, match=r"compute capabilities 8\.9, 9\.0, 10\.0, 10\.3, 12\.0, 12\.1, got 7\.5"):
        start((7, 5))


def test_tensors_elsewhere_are_refused():
    from steelyard.runtime.cuda.devices import kernels_on

    with pytest.raises(TargetError, match="CUDA device, got cpu"):
        kernels_on(torch.device("cpu"))


def test_running_without_the_extra_says_what_to_install():
    code = """
import sys
sys.modules["cuda"] = None
from steelyard.errors import TargetError
from steelyard.runtime.cuda.driver import CudaLauncher
try:
    CudaLauncher(0, lambda: 0)
except TargetError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'steelyard[cuda]'" in run.stdout
