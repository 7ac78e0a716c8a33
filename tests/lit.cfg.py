"""lit configuration: every .mlir file below dialect/, passes/ and tools/ is a test."""

import os
import sys
from pathlib import Path

import lit.formats

config.name = "steelyard"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.excludes = ["unit", "runtime", "e2e", "Inputs"]
config.test_source_root = str(Path(__file__).parent)
config.test_exec_root = str(Path(__file__).parent.parent / "build" / "lit")

bin_dir = Path(sys.executable).parent
config.environment["PATH"] = os.pathsep.join([str(bin_dir), os.environ["PATH"]])
config.substitutions.append(("FileCheck", os.environ.get("FILECHECK") or str(bin_dir / "filecheck")))
config.substitutions.append((r"%python", sys.executable))
