"""Norms and activations on their own and fused into the quantize: executed PTX against the CPU kernels' bytes."""

import pytest
import torch
from kernel_cases import assert_same_copy, mxfp4, nvfp4, pair_name, same_values, scheme_pairs
from simulation import simulated

from steelyard import reference
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu
from steelyard.targets.architectures import TARGETS

PRODUCERS = ("relu", "gelu", "gelu_tanh", "silu", "silu_and_multiply", "add", "layer_norm", "rms_norm")
MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU"), Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")


def inputs_of(producer, x):
    generator = torch.Generator().manual_seed(3)
    weight, bias = (torch.randn(2 * x.shape[1], generator=generator)[::2].to(x.dtype) for _ in range(2))
    if producer in ("silu_and_multiply", "add"):
        return x, torch.randn(x.shape, generator=generator).to(x.dtype)
    return {"layer_norm": (x, weight, bias, 1e-5), "rms_norm": (x, weight, 1e-6)}.get(producer, (x,))


def matrix(rows, columns, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, columns, generator=generator) * 3
    x[0] = torch.linspace(-110, 30, columns)
    x[1, :4] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-44])
    return x.to(dtype)


CASES = ((9, 77), torch.float32), ((16, 96), torch.bfloat16), ((5, 48), torch.float16)


@pytest.mark.every(3)
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_produce(producer, shape, dtype):
    check_produce("sm_90a", producer, shape, dtype)


def check_produce(target, producer, shape, dtype):
    inputs = inputs_of(producer, matrix(*shape, dtype))
    assert same_values(simulated(target).produce(producer, inputs), cpu.produce(producer, inputs, dtype))


@pytest.mark.parametrize("producer", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("columns", [1, 31, 513, 1100])
def test_long_rows_are_summed_in_one_order(producer, columns):
    x = torch.randn(5, columns, generator=torch.Generator().manual_seed(columns)) * 3 + 100
    inputs = inputs_of(producer, x)
    found = simulated("sm_100a").produce(producer, inputs)
    assert same_values(found, cpu.produce(producer, inputs, torch.float32))
    functional = getattr(torch.nn.functional, producer)
    wide = [value.double() if isinstance(value, torch.Tensor) else value for value in inputs]
    exact = functional(wide[0], (columns,), *wide[1:])
    assert bool(((found.double() - exact).abs() <= 1e-5 * (exact.abs() + 10)).all())


def test_norms_without_weight_and_bias():
    x = matrix(4, 40)[2:]
    kernels = simulated("sm_90a")
    assert same_values(
        kernels.produce("layer_norm", (x, None, None, 1e-5)), cpu.produce("layer_norm", (x, None, None, 1e-5), x.dtype)
    )
    assert same_values(kernels.produce("rms_norm", (x, None, 1e-5)), cpu.produce("rms_norm", (x, None, 1e-5), x.dtype))


FUSED = MX, (nvfp4(), nvfp4(rht=True)), scheme_pairs()[0], (Scheme("f8E4M3FN", "row", "f32"), mxfp4())


@pytest.mark.every(7)
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("pair", FUSED, ids=pair_name)
def test_fused_bytes_are_those_of_the_unfused_producer(producer, pair):
    check_fused("sm_100a", producer, pair)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_producers_on_every_target(target, producer):
    for shape, dtype in CASES:
        check_produce(target, producer, shape, dtype)
    for pair in FUSED:
        check_fused(target, producer, pair)


def check_fused(target, producer, pair):
    inputs = inputs_of(producer, matrix(20, 48, torch.bfloat16))
    found = simulated(target).quantize_produced(producer, inputs, *pair)
    expected = reference.quantize(cpu.produce(producer, inputs, torch.bfloat16), *pair)
    for copies in zip(found, expected, strict=True):
        assert_same_copy(*copies)
