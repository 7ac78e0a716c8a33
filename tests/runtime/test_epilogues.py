import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gemm_cases import assert_within_bound, decoded, products, random_copy
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, SPECIAL_VALUES, same_bytes, same_values, with_layout

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu

E4M3 = Scheme("f8E4M3FN", "tensor", "f32")
EPILOGUES = ("none", "relu", "gelu", "gelu_tanh", "silu")


def exact(epilogue: str, x: torch.Tensor) -> torch.Tensor:
    """In float64, by formulas that keep the lower tails of the activations."""
    x = x.double()
    if epilogue == "gelu":
        return x * torch.special.erfc(-x / math.sqrt(2)) / 2
    if epilogue == "gelu_tanh":
        return x / (1 + torch.exp(-2 * math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))
    return {"none": x.clone, "relu": x.relu, "silu": lambda: x / (1 + torch.exp(-x))}[epilogue]()


# In a dense sweep of its lower tail, gelu is off by up to 5.5 units in the last place, and the others by 2.7.
ULPS = {"gelu": 6}


def assert_within_ulps(epilogue: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """float32 against float64; NaN and infinity must match."""
    finite = expected.float().isfinite()
    assert same_values(torch.where(finite, 0, found), torch.where(finite, 0, expected).float())
    spacing = np.spacing(expected.float().abs()[finite].clamp(max=3e38).numpy())
    error = (found.double() - expected).abs()[finite]
    assert bool((error <= ULPS.get(epilogue, 5) * torch.from_numpy(spacing).double()).all())


def of_bias(bias: torch.Tensor, qgemm=cpu.qgemm, **options):
    """The epilogue of the bias alone, by a GEMM with an empty reduction."""
    rng = np.random.default_rng(0)
    a, b = random_copy(rng, E4M3, 2, 0, False), random_copy(rng, E4M3, bias.numel(), 0, False)
    return qgemm(a, b, bias=bias, **options)


def sweep() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(5000, generator=generator) * torch.exp2(torch.randn(5000, generator=generator) * 8)
    tails = torch.linspace(-110, 20, 20001)
    return torch.cat((tails, torch.linspace(-16, 16, 20001), spread, torch.tensor(SPECIAL_VALUES), -tails[:77] * 1e36))


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogue_of_any_value(isa, epilogue):
    values = sweep()
    found = of_bias(values, epilogue=epilogue)
    assert_within_ulps(epilogue, found, exact(epilogue, values + 0.0).expand(2, -1))


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_special_values_in_every_lane_are_as_torch_has_them(isa, epilogue):
    function = {
        "none": lambda x: x,
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }[epilogue]
    for value in (math.nan, math.inf, -math.inf, 3.4028234e38):
        for lane in range(40):
            values = torch.zeros(40)
            values[lane] = value
            assert same_values(of_bias(values, epilogue=epilogue), function(values.double()).float().expand(2, -1))


@pytest.mark.parametrize("name", cpu.instruction_sets())
@settings(max_examples=60, deadline=None)
@given(
    operands=products(max_k=200),
    epilogue=st.sampled_from(EPILOGUES),
    dtypes=st.tuples(*[st.sampled_from(DTYPES)] * 3),
    layout=st.sampled_from(("rows", "columns", "padded", "stepped", "expanded_rows")),
    with_bias=st.booleans(),
    threads=st.sampled_from((1, 2, 5)),
    seed=st.integers(0, 999),
)
def test_result_preactivation_and_residual(name, operands, epilogue, dtypes, layout, with_bias, threads, seed):
    torch.set_num_threads(threads)
    cpu.set_isa(name)
    shape = decoded(operands[0]).shape[0], decoded(operands[1]).shape[0]
    generator = torch.Generator().manual_seed(seed)
    bias = torch.randn(shape[1], generator=generator).to(dtypes[0]) if with_bias else None
    residual = with_layout(torch.randn(shape, generator=generator).to(dtypes[1]), layout)

    result, before = cpu.qgemm(*operands, bias=bias, epilogue=epilogue, preactivation=True)
    assert_within_bound(before, *operands, addends=[] if bias is None else [bias])
    assert_within_ulps(epilogue, result, exact(epilogue, before))
    assert same_bytes(cpu.qgemm(*operands, bias=bias, epilogue=epilogue), result)

    options = {"bias": bias, "epilogue": epilogue, "residual": residual, "preactivation": True}
    added, also_before = cpu.qgemm(*operands, out_dtype=dtypes[2], **options)
    assert same_values(added, (result + residual.float()).to(dtypes[2]))
    assert same_values(also_before, before.to(dtypes[2]))
    if epilogue != "none":
        assert same_bytes(cpu.qgemm(*operands, out_dtype=dtypes[2], **options | {"preactivation": False}), added)


def test_residual_alone_is_added_before_the_rounding():
    rng = np.random.default_rng(1)
    a, b = random_copy(rng, E4M3, 30, 70, False), random_copy(rng, E4M3, 50, 70, False)
    bias, residual = torch.randn(50), torch.randn(30, 50).bfloat16()
    for dtype in DTYPES:
        found = cpu.qgemm(a, b, bias=bias, residual=residual, out_dtype=dtype)
        assert_within_bound(found, a, b, addends=[bias, residual])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_reference_rounds_the_exact_epilogue(epilogue, dtype):
    values, residual = sweep(), torch.randn(2, sweep().numel())
    options = {"epilogue": epilogue, "out_dtype": dtype, "qgemm": reference.qgemm}
    info = torch.finfo(dtype)
    for extra in (None, residual):
        found, kept = of_bias(values, residual=extra, preactivation=True, **options)
        expected = exact(epilogue, values).expand(2, -1) + (0 if extra is None else extra.double())
        assert same_values(kept, (values + 0.0).to(dtype).expand(2, -1))
        expected = expected.float().to(dtype)
        torch.testing.assert_close(found, expected, rtol=info.eps, atol=info.smallest_normal * info.eps, equal_nan=True)
        assert same_bytes(of_bias(values, residual=extra, **options), found)


@pytest.mark.parametrize(("M", "N", "K"), [(300, 200, 130), (2100, 130, 40)])
def test_bytes_do_not_depend_on_threads(M, N, K):
    rng = np.random.default_rng(2)
    a, b = (replace(random_copy(rng, E4M3, outer, K, False), scales=torch.tensor(1e-3)) for outer in (M, N))
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(cpu.qgemm(a, b, epilogue="gelu", bias=torch.ones(N), preactivation=True))
    for parts in found[1:]:
        assert all(same_bytes(*pair) for pair in zip(parts, found[0], strict=True))


def test_residual_in_place():
    rng = np.random.default_rng(3)
    a, b = random_copy(rng, E4M3, 60, 33, False), random_copy(rng, E4M3, 140, 33, False)
    residual = torch.randn(60, 140)
    expected = cpu.qgemm(a, b, epilogue="silu", residual=residual)
    assert cpu.qgemm(a, b, epilogue="silu", residual=residual, out=residual) is residual
    assert same_bytes(residual, expected)


@pytest.mark.parametrize("qgemm", [cpu.qgemm, reference.qgemm], ids=["cpu", "reference"])
@pytest.mark.parametrize(
    ("options", "constraint"),
    [
        ({"epilogue": "softplus"}, "gemm_epilogue"),
        ({"accumulate": torch.zeros(4, 6), "epilogue": "gelu"}, "gemm_accumulate"),
        ({"accumulate": torch.zeros(4, 6), "residual": torch.zeros(4, 6)}, "gemm_accumulate"),
        ({"accumulate": torch.zeros(4, 6), "preactivation": True}, "gemm_accumulate"),
        ({"residual": torch.zeros(6, 4)}, "gemm_addend"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_refuses(qgemm, options, constraint):
    rng = np.random.default_rng(0)
    a, b = random_copy(rng, E4M3, 4, 8, False), random_copy(rng, E4M3, 6, 8, False)
    with pytest.raises(ConstraintError) as caught:
        qgemm(a, b, **options)
    assert caught.value.constraint == constraint


def test_refuses_out_that_overlaps_the_residual():
    rng = np.random.default_rng(0)
    a, b = random_copy(rng, E4M3, 4, 8, False), random_copy(rng, E4M3, 6, 8, False)
    memory = torch.arange(40.0)
    with pytest.raises(ConstraintError, match="residual"):
        cpu.qgemm(a, b, out=memory[:24].view(4, 6), residual=memory[6:30].view(4, 6), epilogue="relu")
    assert torch.equal(memory, torch.arange(40.0))
