"""The predicted speeds: the model by hand, and the committed data against the PTX of today."""

import importlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ptx_arithmetic import COMPUTING
from ptx_instructions import ACCESSES, ATOMICS, EXCHANGES

from steelyard.tools.gpu.predictions import FILE, prediction_of

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SAMPLE = [
    ("sm_90a", "amax"),
    ("sm_90a", "quantize nvfp4 weight row"),
    ("sm_90a", "quantize fp8-delayed of 8 experts"),
    ("sm_100a", "quantize fp8-block"),
    ("sm_100a", "quantize mxfp8"),
]
REMEDY = "run `python benchmarks/predict_gpu.py` where ptxas is installed"


@pytest.fixture
def harness(monkeypatch):
    """Modules of the benchmarks by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def work(harness):
    """A launch of 1000 blocks that moves a megabyte and does nothing else worth mentioning."""
    roofline = harness("gpu_roofline")
    return roofline.Work(1e6, 1e6, {"integer": 10.0}, 10.0, blocks=1000, threads=128, shared_bytes=1024, rounds=1)


def seconds(harness, work, registers=32):
    roofline = harness("gpu_roofline")
    gpu = roofline.Gpu("a GPU", "sm_90a", 100, 1e9, 1e12, 1000, {})
    found = roofline.estimate(work, registers, gpu)
    return found.seconds, found.limit


def test_the_slowest_resource_decides(harness, work):
    assert seconds(harness, work) == (pytest.approx(1e6 / 0.9e12), "memory")
    assert seconds(harness, replace(work, sector_bytes=4e6)) == (pytest.approx(4e6 / 1e12), "cache")
    # 100 multiprocessors of 1 GHz: 2 warp instructions of integers in a clock, 4 of all kinds.
    assert seconds(harness, replace(work, instructions={"integer": 1e6})) == (pytest.approx(5e-6), "integer")
    busy = {"integer": 1e6, "fp32": 2e6, "other": 1e6}
    assert seconds(harness, replace(work, instructions=busy)) == (pytest.approx(1e-5), "issue")
    assert seconds(harness, replace(work, memory_wavefronts=1e6)) == (pytest.approx(1e-5), "shared memory")
    # 4 blocks of 128 registers and 128 threads fit: 2.5 waves on 100 multiprocessors, 1000 clocks each.
    slow = replace(work, rounds=2, bytes=1)
    assert seconds(harness, slow, registers=128) == (pytest.approx(2 * 2.5e-6), "latency")


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "blocks"),
    [
        (32, 0, 16),  # 2048 threads
        (33, 0, 12),  # a warp has registers by 256: 40 for each thread
        (32, 56 * 1024, 4),  # 57 KiB each, of 228
    ],
)
def test_blocks_that_fit_a_multiprocessor(harness, work, registers, shared_bytes, blocks):
    found = harness("gpu_roofline").resident_blocks(replace(work, shared_bytes=shared_bytes), registers)
    assert found == blocks


def test_every_instruction_has_a_cost(harness):
    costs = harness("instruction_costs")
    for opcode in (*COMPUTING, *ACCESSES, *ATOMICS, *EXCHANGES, "mov.b32 {}", "bra", "bra.uni", "bar.sync", "ret"):
        assert set(costs.cost_of(opcode)) <= set(costs.UNITS), opcode
    with pytest.raises(ValueError, match=r"tanh\.approx\.f32"):
        costs.cost_of("tanh.approx.f32")
    counted = {"add.s64": 3, "mul.rn.f32": 2, "mov.b32": 9, "cvt.rn.satfinite.e4m3x2.f32": 1}
    assert costs.costs_of(counted) == {"integer": 6, "fp32": 2, "narrow": 1}


@pytest.mark.parametrize(("target", "row"), SAMPLE)
def test_the_data_are_those_of_the_kernels(harness, target, row):
    predict, roofline = harness("predict_gpu"), harness("gpu_roofline")
    committed = json.loads(FILE.read_text())["targets"][target]["rows"][row]
    case = next(case for case in predict.cases() if case.name == row)
    gpu = next(gpu for gpu in roofline.GPUS if gpu.target == target)
    found = predict.predict_case(case, gpu, committed["registers"])
    assert found == {name: committed[name] for name in found}, REMEDY


def test_registers_are_those_that_ptxas_finds(harness):
    gpu_work, predict = harness("gpu_work"), harness("predict_gpu")
    assembler = gpu_work.ptxas()
    version = subprocess.run([assembler, "--version"], capture_output=True, text=True).stdout if assembler else ""
    if "release 13.0" not in version:
        pytest.skip("ptxas 13.0 of the CUDA toolkit, which the data were made with, is not installed")
    target, row = SAMPLE[-1]
    committed = json.loads(FILE.read_text())["targets"][target]["rows"][row]
    case = next(case for case in predict.cases() if case.name == row)
    ((kernel, _),) = gpu_work.launches_of(target, lambda launcher: case.call(predict.Kernels(launcher)))
    assert gpu_work.assemble(kernel, target).registers == committed["registers"], REMEDY


def test_the_page_shows_the_data(harness):
    assert harness("predict_gpu").main(["--check"]) == 0, "docs/cuda.md is stale: " + REMEDY


def test_predictions_are_found_by_row():
    found = prediction_of("sm_90a", "gemm fp8-current")
    assert found is not None
    assert str(found) == "predicted 1979 TFLOP/s for H100 SXM"
    assert prediction_of("sm_90a", "gemm nvfp4") is None  # emulated
    assert prediction_of("sm_89", "copy") is None
