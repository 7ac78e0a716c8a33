import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import matrices, nvfp4, same_bytes

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.runtime import cpu

E4M3 = "f8E4M3FN"
SCHEMES = (
    (Scheme(E4M3, "1x32", "f8E8M0FNU"), Scheme(E4M3, "32x1", "f8E8M0FNU")),
    (Scheme(E4M3, "32x32", "f8E8M0FNU"),) * 2,
    (nvfp4(), nvfp4(rht=True)),
    (Scheme(E4M3, "1x128", "f32"),) * 2,
    (Scheme(E4M3, "128x128", "f32"),) * 2,
)
DELAYED = Scheme(E4M3, "tensor", "f32", source="delayed")


@settings(max_examples=50, deadline=None)
@given(x=matrices(max_side=300), pair=st.sampled_from(SCHEMES), columnwise=st.booleans())
def test_swizzle_equals_the_reference(x, pair, columnwise):
    copy = cpu.quantize(x, *pair)[columnwise]
    assert same_bytes(cpu.swizzle(copy), reference.swizzle(copy))


@pytest.mark.parametrize("shape", [(1, 1), (130, 5), (257, 9)])
def test_swizzle_puts_each_byte_where_the_formula_says(shape):
    rows, columns = shape
    copy, _ = cpu.quantize(torch.zeros(rows, 32 * columns), SCHEMES[0][0], None)
    copy.scales.random_(1, 256)
    expected = torch.zeros(math.ceil(rows / 128) * 128 * math.ceil(columns / 4) * 4, dtype=torch.uint8)
    for i in range(rows):
        for j in range(columns):
            tile = (i // 128) * math.ceil(columns / 4) + j // 4
            expected[tile * 512 + (i % 32) * 16 + ((i % 128) // 32) * 4 + j % 4] = copy.scales[i, j]
    assert torch.equal(cpu.swizzle(copy).flatten(), expected)


_amaxes = st.floats(0, 2.0**126, width=32) | st.sampled_from((0.0, math.nan, math.inf, 1e-45, 448.0))


@settings(max_examples=80, deadline=None)
@given(
    history=st.lists(_amaxes, min_size=1, max_size=9),
    margin=st.integers(-2, 3),
    algorithm=st.sampled_from(("max", "most_recent", lambda history: history.sum())),
    power_of_two=st.booleans(),
)
def test_update_scale_equals_the_reference(history, margin, algorithm, power_of_two):
    scheme = Scheme(E4M3, "tensor", "f32", source="delayed", power_of_two=power_of_two)
    state = torch.tensor(0.7), torch.tensor(history)
    options = {"margin": margin, "algorithm": algorithm}
    for found, expected in zip(
        cpu.update_scale(*state, scheme, **options), reference.update_scale(*state, scheme, **options), strict=True
    ):
        assert same_bytes(found, expected)


def test_each_expert_has_a_scale_and_a_column():
    history = torch.tensor([[4.0, 0.0, 8.0], [2.0, 7.0, 64.0]])
    scale, rolled = cpu.update_scale(torch.tensor([3.0, 5.0, 1.0]), history, DELAYED)
    # The second has no rows in this step: it keeps what it has.
    assert scale.tolist() == [112.0, 5.0, 7.0]
    assert rolled.tolist() == [[0.0, 0.0, 0.0], [4.0, 7.0, 8.0]]
    with pytest.raises(ConstraintError, match=r"or have such a column for each expert, got shape \(2, 3\)"):
        cpu.update_scale(torch.ones(2), history, DELAYED)
    by_itself = [cpu.update_scale(one, column, DELAYED) for one, column in zip(torch.ones(3), history.T, strict=True)]
    assert [one.item() for one, _ in by_itself] == reference.update_scale(torch.ones(3), history, DELAYED)[0].tolist()


def test_update_scale_by_hand():
    scale, history = torch.tensor(1.0), torch.tensor([2.0, 7.0, 4.0])
    new_scale, new_history = cpu.update_scale(scale, history, DELAYED)
    assert new_scale.item() == 64.0
    assert new_history.tolist() == [0.0, 4.0, 2.0]
    assert history.tolist() == [2.0, 7.0, 4.0]
    same_scale, same_history = cpu.update_scale(scale, torch.tensor([0.0, 7.0]), DELAYED)
    assert (same_scale.item(), same_history.tolist()) == (1.0, [0.0, 7.0])
