"""What becomes of checks that fail, raise, hang or break the GPU, and of those after them."""

import threading

import pytest

from steelyard.tools.gpu.checks import (
    COMPLETE,
    HUNG,
    INTERRUPTED,
    LOST,
    UNFINISHED,
    Check,
    CheckFailed,
    Checking,
    CheckSkipped,
    Result,
    guarded,
)


class Gpu:
    """Raises its error whenever somebody waits for it, as a context that is lost does."""

    error: Exception | None = None

    def settle(self):
        if self.error is not None:
            raise self.error


def raising(error: BaseException):
    def run():
        raise error

    return run


def results_of(runs: dict, gpu: Gpu | None = None, limit: float = 60.0, give_up=lambda: None):
    """How checks with these functions end: all results, and how the run did."""
    found: list[Result] = []
    checks = [Check("group", name, run) for name, run in runs.items()]
    checking = Checking(checks, (gpu or Gpu()).settle, found.append, give_up, limit)
    checking.run()
    return found, checking.ended


def table(found: list[Result]) -> list[tuple]:
    return [(result.what, result.passed, result.detail) for result in found]


def test_a_check_that_fails_or_raises_leaves_the_others_their_turn():
    found, ended = results_of(
        {
            "first": lambda: "error 1e-3",
            "second": raising(CheckFailed("codes differ")),
            "third": raising(ValueError("out\n  of luck")),
            "fourth": raising(CheckSkipped("there is one GPU")),
            "last": lambda: "",
        }
    )
    assert ended == COMPLETE
    assert table(found) == [
        ("first", True, "error 1e-3"),
        ("second", False, "codes differ"),
        ("third", False, "ValueError: out of luck"),
        ("fourth", None, "there is one GPU"),
        ("last", True, ""),
    ]
    assert [result.status for result in found] == ["passed", "failed", "failed", "not run", "passed"]
    assert {result.group for result in found} == {"group"}
    assert all(result.seconds >= 0 for result in found)


def test_the_results_of_a_measurement_that_breaks_off_are_kept():
    def measure():
        yield Result("copy", True, "3 GB/s", {"gigabytes_per_second": 3.0})
        raise MemoryError("no room")

    found, _ = results_of({"bandwidth": measure, "last": lambda: ""})
    assert table(found) == [("copy", True, "3 GB/s"), ("bandwidth", False, "MemoryError: no room"), ("last", True, "")]
    assert found[0].values == {"gigabytes_per_second": 3.0}


def test_an_error_that_the_gpu_reports_late_belongs_to_the_check_before():
    gpu = Gpu()

    def launch():
        gpu.error = RuntimeError("illegal address")
        return ""

    found, ended = results_of({"first": lambda: "", "launch": launch, "next": lambda: "", "last": lambda: ""}, gpu)
    assert ended == LOST
    reason = "the CUDA context was lost in 'group: launch'"
    assert table(found) == [
        ("first", True, ""),
        ("launch", False, "RuntimeError: illegal address"),
        ("next", None, reason),
        ("last", None, reason),
    ]


def test_an_error_that_the_gpu_recovers_from_loses_nothing():
    found, ended = results_of({"first": raising(RuntimeError("invalid argument")), "last": lambda: ""})
    assert (ended, [result.passed for result in found]) == (COMPLETE, [False, True])


def test_an_interrupted_run_keeps_what_it_found():
    found, ended = results_of({"first": lambda: "", "second": raising(KeyboardInterrupt()), "last": lambda: ""})
    assert ended == INTERRUPTED
    assert table(found) == [("first", True, ""), ("second", None, "interrupted"), ("last", None, "interrupted")]


def test_a_check_that_hangs_is_given_up():
    given_up, found_then = threading.Event(), []

    def hang():
        given_up.wait(60)
        return "too late"

    def give_up():
        found_then.append(True)
        given_up.set()

    found, ended = results_of({"first": lambda: "", "hang": hang, "last": lambda: ""}, limit=0.2, give_up=give_up)
    assert (ended, found_then) == (HUNG, [True])
    assert table(found) == [
        ("first", True, ""),
        ("hang", False, "it did not end within 0.2 s"),
        ("last", None, "'group: hang' did not end"),
    ]


def test_checks_are_announced_before_they_begin():
    said = []
    checks = [Check("kernels", name, lambda n=name: said.append(n) or "") for name in ("amax", "produce")]
    checking = Checking(checks, lambda: None, lambda _: None, lambda: None, 60)
    assert checking.ended == UNFINISHED
    checking.run(said.append)
    assert said == ["1 of 2, kernels: amax", "amax", "2 of 2, kernels: produce", "produce"]


@pytest.mark.parametrize(("length", "is_cut"), [(100, False), (5000, True)])
def test_details_are_one_line_of_bounded_length(length, is_cut):
    result = guarded("compile", raising(ValueError("x" * length)))
    assert result.passed is False
    assert result.detail.startswith("ValueError: xxx")
    assert result.detail.endswith(" ...") == is_cut
    assert len(result.detail) < 600
