"""CONTRIBUTING names files that exist, and its walk of one GEMM visits none of them twice."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
WALK = PAGE.partition("## The walk of one GEMM")[2].partition("\n## ")[0]


def test_the_walk_visits_each_file_once_and_every_file_exists():
    files = re.findall(r"`([\w/]+(?:\.py|\.cpp|/kernel_calls))`", WALK)
    assert len(files) > 20
    assert len(files) == len(set(files))
    for file in files:
        assert (ROOT / file).exists() or (ROOT / "python/steelyard" / file).exists(), file


def test_the_rooms_are_those_of_the_import_contract():
    import tomllib

    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [set(layer.split(" | ")) for layer in reversed(contract["layers"])]
    rows = [line.split("|")[1] for line in PAGE.partition("## The rooms")[2].splitlines() if line.startswith("| `")]
    named = [{Path(path).stem for path in re.findall(r"`([\w/.]+)`", row)} for row in rows]
    assert named == layers
