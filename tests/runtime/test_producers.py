import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    DTYPES,
    LAYOUTS,
    SPECIAL_VALUES,
    assert_same_copy,
    matrices,
    nvfp4,
    operands,
    pair_name,
    same_bytes,
    same_values,
    scheme_pairs,
    with_layout,
)

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu

PRODUCERS = ("relu", "gelu", "gelu_tanh", "silu", "silu_and_multiply", "add", "layer_norm", "rms_norm")
MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU"), Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")


def inputs_of(producer, x, layout="rows", seed=0):
    """`x` and the other inputs of the producer."""
    generator = torch.Generator().manual_seed(seed)
    columns = x.shape[-1]
    weight, bias = (torch.randn(2 * columns, generator=generator)[::2].to(x.dtype) for _ in range(2))
    if producer in ("silu_and_multiply", "add"):
        return x, with_layout(torch.randn(x.shape, generator=generator).to(x.dtype), layout)
    return {"layer_norm": (x, weight, bias, 1e-5), "rms_norm": (x, weight, 1e-6)}.get(producer, (x,))


def exact(producer, inputs):
    """In float64, activations by formulas that keep their lower tails."""
    x, *rest = (value.double() if isinstance(value, torch.Tensor) else value for value in inputs)
    functional = torch.nn.functional
    by_name = {
        "relu": lambda: x.relu(),
        "gelu": lambda: x * torch.special.erfc(-x / math.sqrt(2)) / 2,
        "gelu_tanh": lambda: x / (1 + torch.exp(-2 * math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x))),
        "silu": lambda: x / (1 + torch.exp(-x)),
        "silu_and_multiply": lambda: x / (1 + torch.exp(-x)) * rest[0],
        "add": lambda: x + rest[0],
        "layer_norm": lambda: functional.layer_norm(x, x.shape[-1:], *rest),
        "rms_norm": lambda: functional.rms_norm(x, x.shape[-1:], *rest),
    }
    return by_name[producer]()


def assert_close(producer, inputs, found):
    """Activations and sums: 6 units in the last place of float32. Norms: 1e-5 of the terms of the result."""
    expected = exact(producer, inputs)
    magnitude = expected.abs()
    if producer == "layer_norm":
        magnitude = exact(producer, (inputs[0], inputs[1], None, inputs[3])).abs() + inputs[2].double().abs()
    finite = expected.float().isfinite()
    assert same_values(torch.where(finite, 0, found), torch.where(finite, 0, expected).float())
    if "norm" in producer:
        bound = 1e-5 * magnitude + 1e-6
    else:
        bound = 6 * torch.from_numpy(np.spacing(magnitude.float().clamp(max=3e38).numpy())).double()
    assert bool(((found.double() - expected).abs() <= bound)[finite].all())


def sweep(rows=3, columns=4001):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator) * torch.exp2(
        torch.randn(rows, columns, generator=generator) * 8
    )
    x[0] = torch.linspace(-110, 20, columns)
    x[1, : len(SPECIAL_VALUES)] = torch.tensor(SPECIAL_VALUES)
    return x


@pytest.mark.parametrize("producer", ["relu", "gelu", "gelu_tanh", "silu", "silu_and_multiply", "add"])
def test_elementwise_producers_equal_float64(isa, producer):
    inputs = inputs_of(producer, sweep())
    assert_close(producer, inputs, cpu.produce(producer, inputs, torch.float32))


@pytest.mark.parametrize("producer", ["gelu", "gelu_tanh", "silu", "silu_and_multiply"])
def test_activations_have_the_same_bytes_on_every_instruction_set(producer):
    inputs = inputs_of(producer, sweep(columns=200_001))
    found = []
    for name in cpu.instruction_sets():
        cpu.set_isa(name)
        found.append(cpu.produce(producer, inputs, torch.float32))
    assert all(same_bytes(values, found[0]) for values in found[1:])


@pytest.mark.parametrize("producer", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("columns", [1, 7, 31, 32, 33, 511, 513, 2048, 5003])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_norms_equal_float64(isa, producer, columns, offset):
    x = torch.randn(5, columns, generator=torch.Generator().manual_seed(columns)) * 3 + offset
    inputs = inputs_of(producer, x)
    assert_close(producer, inputs, cpu.produce(producer, inputs, torch.float32))


@pytest.mark.parametrize("producer", ["layer_norm", "rms_norm"])
def test_norms_of_special_rows_are_as_torch_has_them(isa, producer):
    x = torch.randn(4, 70)
    x[0, 3], x[1, 69], x[2] = math.nan, math.inf, 2.0
    inputs = inputs_of(producer, x)
    found, expected = cpu.produce(producer, inputs, torch.float32), exact(producer, inputs)
    assert torch.equal(found.isnan(), expected.isnan())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_norms_without_weight_and_bias():
    x = torch.randn(3, 2, 40)
    ones, zeros = torch.ones(40), torch.zeros(40)
    for given_inputs, full in (
        (("layer_norm", (x, None, None, 1e-5)), (x, ones, zeros, 1e-5)),
        (("rms_norm", (x, None, 1e-5)), (x, ones, 1e-5)),
    ):
        found = cpu.produce(*given_inputs, torch.float32)
        assert found.shape == x.shape
        assert torch.equal(found, cpu.produce(given_inputs[0], full, torch.float32))


@pytest.mark.parametrize("producer", PRODUCERS)
def test_the_result_is_rounded_once(producer):
    inputs = inputs_of(producer, sweep())
    full = cpu.produce(producer, inputs, torch.float32)
    for dtype in DTYPES:
        assert same_values(cpu.produce(producer, inputs, dtype), full.to(dtype))


@settings(max_examples=120, deadline=None)
@given(
    x=matrices(),
    producer=st.sampled_from(PRODUCERS),
    pair=st.sampled_from(scheme_pairs()),
    usage=st.sampled_from(("row", "col", "both")),
    layout=st.sampled_from(LAYOUTS),
    dtype=st.sampled_from(DTYPES),
    threads=st.sampled_from((1, 2, 5)),
    name=st.sampled_from(cpu.instruction_sets()),
    seed=st.integers(0, 99),
)
def test_bytes_equal_those_of_the_unfused_producer(x, producer, pair, usage, layout, dtype, threads, name, seed):
    inputs = inputs_of(producer, x, layout, seed)
    schemes = (None if usage == "col" else pair[0], None if usage == "row" else pair[1])
    cpu.set_isa("baseline")
    torch.set_num_threads(1)
    unfused = cpu.produce(producer, inputs, dtype)
    expected = reference.quantize(unfused, *schemes, **operands(*pair))
    cpu.set_isa(name)
    torch.set_num_threads(threads)
    assert same_bytes(cpu.produce(producer, inputs, dtype), unfused)
    found = cpu.quantize_produced(producer, inputs, *schemes, dtype=dtype, **operands(*pair))
    for copy, expected_copy in zip(found, expected, strict=True):
        if expected_copy is not None:
            assert_same_copy(copy, expected_copy)
        else:
            assert copy is None


@pytest.mark.parametrize("producer", ["layer_norm", "silu_and_multiply"])
@pytest.mark.parametrize("pair", [MX, (nvfp4(), nvfp4(rht=True)), scheme_pairs()[0]], ids=pair_name)
def test_many_tiles_and_threads(isa, producer, pair):
    x = torch.randn(300, 2500).bfloat16()
    inputs = inputs_of(producer, x)
    expected = cpu.quantize(cpu.produce(producer, inputs, torch.bfloat16), *pair)
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found = cpu.quantize_produced(producer, inputs, *pair, dtype=torch.bfloat16)
        for copies in zip(found, expected, strict=True):
            assert_same_copy(*copies)


@pytest.mark.parametrize("pair", [scheme_pairs()[0], (nvfp4(), nvfp4(rht=True))], ids=pair_name)
def test_producing_twice_leaves_the_same_bytes(monkeypatch, isa, pair):
    x = sweep(70, 300)
    expected = reference.quantize(cpu.produce("gelu", (x,), torch.float32), *pair)
    for reused_bytes in (0, 1 << 30):
        monkeypatch.setattr(cpu.producers, "_REUSED_BYTES", reused_bytes)
        found = cpu.quantize_produced("gelu", (x,), *pair, dtype=torch.float32)
        for copies in zip(found, expected, strict=True):
            assert_same_copy(*copies)


def test_denormals_survive_a_caller_that_flushes_them():
    tiny = torch.full((3, 40), 1e-40)
    torch.set_flush_denormal(True)
    try:
        found = cpu.produce("add", (tiny, tiny), torch.float32)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(found, tiny + tiny)
    assert bool((found > 0).all())


def test_given_scales_and_amaxes_are_used():
    x = torch.randn(40, 200)
    tensor = Scheme("f8E4M3FN", "tensor", "f32")
    delayed = Scheme("f8E4M3FN", "tensor", "f32", source="delayed")
    unfused = cpu.produce("silu", (x,), torch.float32)
    for scheme, given_operands in (
        (delayed, {"scale": torch.tensor(3.0)}),
        (tensor, {"amax": torch.tensor(9.0)}),
        (nvfp4(), {"amax": torch.tensor(9.0)}),
    ):
        found, _ = cpu.quantize_produced("silu", (x,), scheme, None, dtype=torch.float32, **given_operands)
        assert_same_copy(found, reference.quantize(unfused, scheme, None, **given_operands)[0])


@pytest.mark.parametrize(
    ("producer", "inputs", "dtype", "constraint"),
    [
        ("softmax", (torch.zeros(2, 3),), torch.float32, "producer_kind"),
        ("add", (torch.zeros(2, 3),), torch.float32, "producer_inputs"),
        ("add", (torch.zeros(2, 3), torch.zeros(3)), torch.float32, "producer_inputs"),
        ("gelu", (torch.zeros(2, 3),), torch.float64, "producer_dtype"),
        ("gelu", (torch.zeros(2, 3).double(),), torch.float32, "quantize_input"),
        ("rms_norm", (torch.zeros(2, 3), torch.zeros(2), 1e-5), torch.float32, "producer_inputs"),
        ("layer_norm", (torch.zeros(2, 3), torch.zeros(3).double(), None, 1e-5), torch.float32, "producer_inputs"),
        ("silu", (torch.zeros(2, 3, device="meta"),), torch.float32, "cpu_tensor"),
    ],
)
def test_refuses(producer, inputs, dtype, constraint):
    for call in (
        lambda: cpu.produce(producer, inputs, dtype),
        lambda: cpu.quantize_produced(producer, inputs, *MX, dtype=dtype),
    ):
        with pytest.raises(ConstraintError) as caught:
            call()
        assert caught.value.constraint == constraint
