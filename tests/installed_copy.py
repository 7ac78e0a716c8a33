"""Copy the Python files of the package into a folder as a wheel would lay them out, without building anything.

`make lint` reads this copy: pyright and import-linter cannot follow the folder mapping of an editable install.
"""

import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copy_package(destination: Path) -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        packages = tomllib.load(file)["tool"]["scikit-build"]["wheel"]["packages"]
    shutil.rmtree(destination, ignore_errors=True)
    for package, folder in packages.items():
        for source in (ROOT / folder).rglob("*.py*"):
            if source.suffix not in (".py", ".pyi"):
                continue
            target = destination / package / source.relative_to(ROOT / folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


if __name__ == "__main__":
    copy_package(Path(sys.argv[1]))
