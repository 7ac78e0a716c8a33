"""The Containerfile and the notebook, which cannot be built or opened here: what they name exists."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from steelyard.targets.architectures import TARGETS
from steelyard.tools import cli, verify_gpu

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/cuda.md").read_text().partition("## Ten minutes on a borrowed GPU")[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TORCH = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(" ", 1)) for line in lines]


def arguments_of(name: str) -> list[str]:
    return [argument for instruction, argument in instructions() if instruction == name]


def cells(kind: str) -> list[str]:
    notebook = json.loads((ROOT / "examples/verify_gpu.ipynb").read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def assert_accepted(command: list[str]) -> None:
    assert command[0] == "steelyard"
    parsed = cli._make_parser().parse_args(command[1:])
    assert (parsed.run, parsed.quick, str(parsed.json)) == (verify_gpu.run, True, "report.json")


def test_the_container_begins_with_a_public_image_whose_python_fits():
    (image,) = arguments_of("FROM")
    major, minor = re.fullmatch(r"python:(\d+)\.(\d+)-slim", image).groups()
    assert PROJECT["project"]["requires-python"] == f">={major}.{minor}"


def test_the_container_copies_what_the_package_is_built_from():
    copied = {source for argument in arguments_of("COPY") for source in argument.split()[:-1]}
    assert all((ROOT / source).exists() for source in copied)
    packages = {Path(folder).parts[0] for folder in PROJECT["tool"]["scikit-build"]["wheel"]["packages"].values()}
    project = PROJECT["project"]
    assert copied == packages | {"pyproject.toml", project["readme"], *project["license-files"]}
    assert PROJECT["tool"]["scikit-build"]["cmake"]["source-dir"] in copied


def test_the_container_installs_as_the_document_does():
    tools, *installs = arguments_of("RUN")
    assert {"g++", "make"} <= set(tools.split())
    assert [install.replace(" --no-cache-dir", "") for install in installs] == [
        f"pip install torch=={TORCH}",
        "pip install '.[cuda]'",
    ]
    documented = [line.partition("  ")[0] for line in PAGE.splitlines()]
    assert all(install.replace(" --no-cache-dir", "") in documented for install in installs)


def test_the_container_runs_the_documented_command():
    command = [
        word for name in ("ENTRYPOINT", "CMD") for argument in arguments_of(name) for word in json.loads(argument)
    ]
    assert_accepted(command)
    assert shlex.join(command) in PAGE
    # What it writes is in the folder that the document mounts.
    assert arguments_of("WORKDIR")[-1] == "/report"
    assert '"$PWD:/report"' in PAGE


@pytest.mark.parametrize("path", ["Containerfile", "examples/verify_gpu.ipynb"])
def test_no_other_host_or_folder_is_named(path):
    text = (ROOT / path).read_text()
    assert not re.search(r"https?://|[\w-]+\.(io|com|org|net)\b", text)
    folders = set(re.findall(r"(?<![\w.*])(/\w[\w/]*)", text))
    assert folders <= {"/source", "/report", "/var/lib/apt/lists/", "/var/lib/apt/lists"}


def test_the_notebook_is_valid_and_has_no_outputs():
    notebook = json.loads((ROOT / "examples/verify_gpu.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"].keys() == {"display_name", "language", "name"}
    identities = [cell["id"] for cell in notebook["cells"]]
    assert len(set(identities)) == len(identities)
    for cell in notebook["cells"]:
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", cell["id"])
        assert isinstance(cell["metadata"], dict)
        assert all(isinstance(line, str) for line in cell["source"])
        is_code = cell["cell_type"] == "code"
        assert cell["cell_type"] in ("code", "markdown")
        fields = {"cell_type", "id", "metadata", "source"}
        assert cell.keys() == (fields | {"outputs", "execution_count"} if is_code else fields)
        assert not is_code or (cell["outputs"], cell["execution_count"]) == ([], None)


def test_the_notebook_installs_and_runs_what_exists():
    install, verify, table = cells("code")
    command, *options = shlex.split(install.removeprefix("!"))
    assert command == "pip"
    assert options[-2:] == [f"torch=={TORCH}", "./steelyard.zip[cuda]"]
    assert "cuda" in PROJECT["project"]["optional-dependencies"]
    assert_accepted(shlex.split(verify.removeprefix("!")))
    compile(table, "<cell>", "exec")
    assert "steelyard.zip" in cells("markdown")[0]
    assert all("{}.{}".format(*target.capability) in cells("markdown")[0] for target in TARGETS.values())
    assert "report.json" in cells("markdown")[-1]
