"""The benchmark harness: what it counts, how it shows a missing peer, and the page it writes."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def harness(monkeypatch):
    """Modules of the benchmarks by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_works_take_turns_and_the_first_round_is_not_counted(harness):
    order: list[str] = []
    ticks = iter([0.0, 5.0, 10.0, 11.0, 20.0, 23.0, 30.0, 31.0, 40.0, 44.0, 50.0, 51.0])
    works = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    times = harness("timing").interleave(works, calls=3, clock=lambda: next(ticks))
    assert order == ["a", "b"] * 4
    # a: 5, 3, 4; b: 1, 1, 1
    assert (times["a"].best, times["a"].median) == (3.0, 4.0)
    assert (times["b"].best, times["b"].median) == (1.0, 1.0)


def test_slow_work_is_called_less_often(harness):
    calls = {"slow": 0, "fast": 0}
    now = [0.0]

    def work(name: str, seconds: float) -> None:
        calls[name] += 1
        now[0] += seconds

    works = {"slow": lambda: work("slow", 1.0), "fast": lambda: work("fast", 0.01)}
    harness("timing").interleave(works, calls=10, seconds=2.5, clock=lambda: now[0])
    assert calls == {"slow": 1 + 3, "fast": 1 + 10}


def test_a_contest_shows_ratios_and_what_cannot_run(harness):
    contest = harness("contest")
    table = contest.contest_table("title", "baseline")

    def missing():
        raise ImportError("No module named 'peer'")

    def broken():
        raise ValueError("not on this machine\nwith a long trace")

    makers = {
        "baseline": lambda: contest.Contender(lambda: torch.ones(4), held=2_000_000),
        "half": lambda: contest.Contender(lambda: torch.full((4,), 0.5)),
        "missing peer": missing,
        "broken peer": broken,
    }
    contest.compete(table, "work", 1, makers, calls=3, seconds=1.0, aims={"half": 2.0})
    rows = {row["contender"]: row for row in table.data()["rows"]}
    assert list(rows) == list(makers)
    assert rows["baseline"]["speed"] == 1.0
    assert rows["baseline"]["held MB"] == 2.0
    assert rows["half"]["error"] == pytest.approx(0.5)
    assert rows["half"]["aim"] == 2.0
    assert rows["missing peer"]["best ms"] == "missing"
    assert rows["broken peer"]["best ms"] == "fails"
    notes = "\n".join(table.notes)
    assert "missing peer missing: No module named 'peer'" in notes
    assert "broken peer fails: ValueError: not on this machine" in notes
    assert "long trace" not in notes


def test_documents_are_stale_where_their_speeds_are_not_those_of_the_results(harness, tmp_path, monkeypatch, capsys):
    page = harness("page")
    summary = tmp_path / "summary.md"
    summary.write_text(f"before\n{page.BEGIN}\n| | mxfp8 |\n{page.END}\nafter\n")
    monkeypatch.setattr(page, "SUMMARIES", (summary,))
    assert page.main(["--check"]) == 1
    assert "summary.md is stale" in capsys.readouterr().err
    assert page.main([]) == 0
    text = summary.read_text()
    results = json.loads((BENCHMARKS / "results" / "models.json").read_text())["rows"]
    decode = {row["contender"]: row for row in results if row["work"].startswith("Llama") and row["threads"] == "1"}
    ratio = decode["eager fp32"]["median ms"] / decode["steelyard nvfp4"]["median ms"]
    (row,) = (line for line in text.splitlines() if "decoding step" in line)
    assert float(row.split("|")[-2]) == pytest.approx(ratio, abs=0.005)
    assert text.startswith(f"before\n{page.BEGIN}\n")
    assert text.endswith(f"{page.END}\nafter\n")


def test_every_ratio_is_a_speed_with_its_baseline_at_one(harness):
    """Above 1 is faster: a row that takes less time than the baseline of its work has the larger number."""
    for name in ("models", "training", "peers"):
        rows = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())["rows"]
        for row in rows:
            if isinstance(row["best ms"], str):
                continue
            base = next(r for r in rows if (r["work"], r["threads"]) == (row["work"], row["threads"]))
            assert row["speed"] == pytest.approx(base["median ms"] / row["median ms"]), row
            assert row["speed, best"] == pytest.approx(base["best ms"] / row["best ms"]), row
    for row in json.loads((BENCHMARKS / "results" / "threads.json").read_text())["rows"]:
        assert row["speed, 1 thread = 1"] == pytest.approx(row["ms, 1 thread"] / row["ms, threads"]), row
    assert harness("charts")._axis_label("speed") == "speed against float32; above 1 is faster"


def test_growth_per_layer_and_speeds_of_first_calls(harness):
    compile_time = harness("compile_time")
    times, blocks, whole = harness("timing").Times, compile_time.BLOCKS, compile_time.WHOLE
    work, empty = compile_time.FORWARD, compile_time.EMPTY
    measured = {
        (work, empty, "8", blocks): times(1.0, 1.5),
        (work, empty, "8", whole): times(4.0, 5.0),
        (work, empty, "30", blocks): times(1.44, 2.16),
        (work, empty, "30", whole): times(12.8, 16.0),
    }
    compile_time._add_growth(measured, 8, 30)
    first = compile_time._row((work, empty, "30", blocks), measured)
    assert first[:3] == ["forward, first call, empty cache", "30", blocks]
    assert first[3:] == pytest.approx([1.44, 2.16, 6.0, 16.0 / 2.16, 12.8 / 1.44])
    growth = compile_time._row((work, compile_time.GROWTH, "8 to 30", blocks), measured)
    # best: 0.44 s and 8.8 s for 22 layers; median: 0.66 s and 11 s
    assert growth[3:] == pytest.approx([0.02, 0.03, 0.04, 0.5 / 0.03, 0.4 / 0.02])
    assert compile_time._row((work, empty, "8", blocks), measured)[5] == ""


def test_every_group_can_be_named(harness):
    run = harness("run")
    for module in run.GROUPS.values():
        assert "def measure(quick: bool = False) -> Table:" in (BENCHMARKS / f"{module}.py").read_text()
    assert set(run.QUICK_GROUPS) < set(run.GROUPS)
    assert set(harness("page").ORDER) <= set(run.GROUPS)


def test_an_unknown_group_is_refused_with_those_that_there_are():
    command = [sys.executable, str(BENCHMARKS / "run.py"), "gemms"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "unknown group gemms; the groups are" in result.stderr
    assert "gemv" in result.stderr


def test_the_page_shows_the_results_that_are_kept(harness):
    page = harness("page")
    text = page.page()
    assert page.main(["--check"]) == 0, "documents are stale: run `python benchmarks/page.py`"
    assert page.PAGE.read_text() == text
    for path in (BENCHMARKS / "results").glob("*.json"):
        data = json.loads(path.read_text())
        assert data["machine"]["CPU"], path.name
        assert f"## {data['title']}" in text
        assert f"`{data['command']}`" in text


def test_a_tuned_row_is_another_with_another_goal_calibration_or_factors(harness, monkeypatch):
    tuned_model = harness("tuned_model")
    name = "mixed, at most 6 bits"
    wanted = tuned_model.identity(name, tokens=4096, fold=True)
    # As a file has it: tuples are lists.
    row = json.loads(json.dumps({**wanted, "bits": 6.0}))
    assert tuned_model.is_stored([row], wanted)
    assert not tuned_model.is_stored([row], tuned_model.identity(name, tokens=4096, fold=False))
    assert not tuned_model.is_stored([row], tuned_model.identity(name, tokens=2048, fold=True))
    # A figure that was only ever printed is measured again.
    assert not tuned_model.is_stored([{**row, "source": "a page"}], wanted)
    monkeypatch.setitem(tuned_model.GOALS, name, {"bits": 6.0, "formats": ("mxfp8", "nvfp4")})
    assert not tuned_model.is_stored([row], tuned_model.identity(name, tokens=4096, fold=True))
    # What is not tuned has neither.
    plain = tuned_model.identity("mxfp8", tokens=4096, fold=True)
    assert tuned_model.is_stored([plain], tuned_model.identity("mxfp8", tokens=2048, fold=False))


def test_the_stored_tuned_rows_say_how_they_were_made(harness):
    tuned_model = harness("tuned_model")
    rows = json.loads((BENCHMARKS / "results" / "tuning" / "tuned_model.json").read_text())
    assert len({(row["name"], row["fold"], row["tokens"]) for row in rows}) == len(rows)
    for row in rows:
        if row["name"] in tuned_model.GOALS:
            assert tuned_model.is_like(row, tuned_model.identity(row["name"], row["tokens"], row["fold"]))


def test_the_frontier_is_what_nothing_beats_in_both(harness):
    frontier = harness("tuned_plot").frontier
    assert frontier([(1.0, 5.0), (2.0, 4.0), (3.0, 9.0), (2.0, 6.0), (2.5, 9.0)]) == [(2.0, 4.0), (3.0, 9.0)]
