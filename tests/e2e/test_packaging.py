"""The package installs as a wheel, also from an sdist, and works without the source tree."""

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECK = """
import steelyard, steelyard.runtime._cpu as native, steelyard.runtime.cpu
assert "{folder}" in steelyard.__file__, steelyard.__file__
assert "{folder}" in native.__file__, native.__file__
assert native.instruction_sets()[0] == "baseline"
import steelyard.dialect, steelyard.passes, steelyard.reference, steelyard.tensor
from steelyard.insight.html import make_page
assert "Content-Security-Policy" in make_page("report", "", {{}})
assert "Content-Security-Policy" in make_page("comparison", "", {{}})
print("ok")
"""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind: str, source: Path, out: Path) -> Path:
    """Build with the backend itself, so that nothing is downloaded."""
    code = f"import scikit_build_core.build as backend; print(backend.build_{kind}({str(out)!r}))"
    return out / run(sys.executable, "-c", code, cwd=source).split()[-1]


def check_wheel(wheel: Path, folder: Path) -> None:
    run(sys.executable, "-m", "venv", folder)
    site = next((folder / "lib").glob("python*/site-packages"))
    # The dependencies come from this environment; its own editable install of the package does not.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    run(folder / "bin" / "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    assert run(folder / "bin" / "python", "-c", CHECK.format(folder=folder), cwd=folder) == "ok\n"
    assert "scaled-canonicalize" in run(folder / "bin" / "steelyard-opt", "--list-passes", cwd=folder)
    assert "nvfp4" in run(folder / "bin" / "steelyard", "demo", "--small", cwd=folder)


@pytest.mark.slow
def test_wheel_from_the_tree(tmp_path):
    wheel = build("wheel", ROOT, tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert "steelyard/dialect/scaled.py" in names
    assert [name for name in names if name.startswith("steelyard/jax/_ffi.")]
    assert not [name for name in names if name.endswith((".cpp", ".h", "CMakeLists.txt"))]
    check_wheel(wheel, tmp_path / "venv")


@pytest.mark.slow
def test_wheel_from_an_sdist(tmp_path):
    sdist = build("sdist", ROOT, tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert not (source / ".venv").exists()
    check_wheel(build("wheel", source, tmp_path), tmp_path / "venv")


def test_no_source_asks_for_the_machine_it_is_built_on():
    builds = [
        *(ROOT / "runtime").rglob("CMakeLists.txt"),
        *(ROOT / "runtime").rglob("*.cmake"),
        ROOT / "pyproject.toml",
    ]
    assert not [path for path in builds if "march=native" in path.read_text()]
