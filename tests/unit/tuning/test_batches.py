"""How far outputs are from those in high precision, against sums that are written out."""

import math

import pytest
import torch

from steelyard.tuning.batches import divergence


def test_the_divergence_of_logits_is_the_mean_over_rows():
    torch.manual_seed(0)
    exact, output = torch.randn(2, 100, 7), torch.randn(2, 100, 7)
    expected = 0.0
    for p, q in zip(exact.reshape(-1, 7).tolist(), output.reshape(-1, 7).tolist(), strict=True):
        all_p, all_q = (math.fsum(math.exp(value) for value in each) for each in (p, q))
        for one, other in zip(p, q, strict=True):
            share = math.exp(one) / all_p
            expected += share * math.log(share / (math.exp(other) / all_q))
    assert divergence(output, exact, is_logits=True) == pytest.approx(expected / 200, rel=1e-6)


def test_the_error_of_other_outputs_is_a_part_of_their_squares():
    assert divergence(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0]), is_logits=False) == pytest.approx(1 / 25)
