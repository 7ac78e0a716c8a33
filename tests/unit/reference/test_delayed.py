import math

import numpy as np
import pytest
import torch

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.recipes import DelayedScaling

E4M3 = DelayedScaling().schemes("input")[0]
E5M2 = DelayedScaling().schemes("grad_output")[0]


def update(scale, history, scheme=E4M3, **options):
    scale, history = reference.update_scale(torch.tensor(scale), torch.tensor(history), scheme, **options)
    return scale.item(), history.tolist()


def test_three_steps_by_hand():
    scale, history = update(1.0, [7.0, 0.0, 0.0])
    assert (scale, history) == (64.0, [0.0, 0.0, 7.0])
    history[0] = 14.0
    scale, history = update(scale, history)
    assert (scale, history) == (32.0, [0.0, 7.0, 14.0])
    history[0] = 3.5
    scale, history = update(scale, history)
    assert (scale, history) == (32.0, [0.0, 14.0, 3.5])
    history[0] = 3.5
    scale, history = update(scale, history)
    assert (scale, history) == (32.0, [0.0, 3.5, 3.5])
    history[0] = 1.75
    assert update(scale, history) == (128.0, [0.0, 3.5, 1.75])


def test_most_recent_margin_and_callable():
    assert update(1.0, [7.0, 448.0], algorithm="most_recent") == (64.0, [0.0, 7.0])
    assert update(1.0, [7.0, 0.0], margin=3)[0] == 8.0
    assert update(1.0, [7.0, 0.0], E5M2)[0] == 8192.0
    assert update(1.0, [7.0, 21.0], algorithm=lambda history: history.mean())[0] == 32.0


def test_a_zero_newest_amax_changes_nothing():
    assert update(5.0, [0.0, 7.0, 14.0]) == (5.0, [0.0, 7.0, 14.0])


def test_useless_amaxes_keep_the_scale_but_roll():
    assert update(5.0, [math.inf, 7.0]) == (5.0, [0.0, math.inf])
    scale, history = update(5.0, [math.nan, 0.0])
    assert scale == 5.0
    assert math.isnan(history[1])


def test_nan_is_ignored_by_the_maximum():
    assert update(5.0, [math.nan, 7.0])[0] == 64.0
    assert update(5.0, [7.0, math.nan])[0] == 64.0


def test_overflow_is_the_largest_float():
    assert update(1.0, [1e-45])[0] == np.finfo(np.float32).max


def test_a_history_of_one():
    assert update(1.0, [7.0]) == (64.0, [0.0])


def test_inputs_are_left_alone():
    scale, history = torch.tensor(1.0), torch.tensor([7.0, 1.0])
    reference.update_scale(scale, history, E4M3)
    assert (scale.item(), history.tolist()) == (1.0, [7.0, 1.0])


def test_refusals():
    with pytest.raises(ConstraintError, match="most_recent"):
        update(1.0, [1.0], algorithm="mean")
    with pytest.raises(ConstraintError, match="vector"):
        update(1.0, [[1.0]])
