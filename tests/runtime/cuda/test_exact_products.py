"""TF32 is off in emulated products, whichever of torch's switches a user turned, and they are as they were after."""

import threading

import pytest
import torch

from steelyard.runtime.cuda import gemm
from steelyard.runtime.cuda.exact_products import exact_products

SWITCHES = (("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("mkldnn", "matmul"))


def state() -> tuple:
    """All of torch's switches, and what the older functions say or that they raise."""
    try:
        older = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:
        older = None
    return tuple(torch._C._get_fp32_precision_getter(*switch) for switch in SWITCHES), older


@pytest.fixture(autouse=True)
def _as_torch_begins():
    def reset():
        torch.set_float32_matmul_precision("highest")
        for switch in SWITCHES:
            torch._C._set_fp32_precision_setter(*switch, "none")

    reset()
    yield
    reset()


def choose_older(value):
    return lambda: torch.set_float32_matmul_precision(value)


def choose_flag():
    torch.backends.cuda.matmul.allow_tf32 = True


def choose_newer():
    torch.backends.cuda.matmul.fp32_precision = "tf32"


def choose_newest():
    torch.backends.fp32_precision = "tf32"


CHOICES = {
    "nothing": lambda: None,
    "high": choose_older("high"),
    "medium": choose_older("medium"),
    "allow_tf32": choose_flag,
    "matmul.fp32_precision": choose_newer,
    "fp32_precision": choose_newest,
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_is_put_aside_and_back(choice, monkeypatch):
    CHOICES[choice]()
    before = state()
    seen = []
    matmul = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda *given, **options: seen.append(state()) or matmul(*given, **options))
    left, right = torch.randn(3, 4), torch.randn(4, 5)
    found = gemm.multiply_decoded(left, right, torch.empty(3, 5))
    assert torch.equal(found, matmul(left, right))
    (((_, _, precision, _), older),) = seen
    assert precision in ("ieee", "none")
    # No other thread that asks by the older functions meets an error that the user's choice did not cause.
    assert older == ("highest", False) or before[1] is None
    assert state() == before


def test_what_follows_the_switch_above_it_still_does():
    torch.backends.fp32_precision = "tf32"
    with exact_products():
        pass
    torch.backends.fp32_precision = "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"


def test_an_error_turns_the_switch_back():
    torch.set_float32_matmul_precision("high")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        gemm.multiply_decoded(torch.randn(3, 4), torch.randn(5, 6), torch.empty(3, 6))
    assert torch.get_float32_matmul_precision() == "high"


def test_threads_do_not_turn_it_under_each_other():
    """The second one to enter must not take the first one's switch for the user's."""
    torch.set_float32_matmul_precision("high")
    inside, may_leave = threading.Event(), threading.Event()

    def first():
        with exact_products():
            inside.set()
            assert may_leave.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(10)
    with exact_products():
        may_leave.set()
        thread.join(10)
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == "high"
