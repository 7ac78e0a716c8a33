"""How long `import steelyard` and the start of the tools take, each in a process of its own."""

import subprocess
import sys

from report import Table, progress
from timing import median_seconds

STATEMENTS = {
    "python -c pass": "pass",
    "import steelyard": "import steelyard",
    "import steelyard.dialect, steelyard.passes": "import steelyard.dialect, steelyard.passes",
    "import torch, for comparison": "import torch",
}


def measure(quick: bool = False) -> Table:
    """One row per statement; the time of starting Python is subtracted."""
    table = Table("Import time (s, without the start of Python)", ["statement", "seconds", "aim"])
    repeats = 3 if quick else 9
    base = 0.0
    for name, statement in STATEMENTS.items():
        progress(name)
        seconds = median_seconds(lambda s=statement: subprocess.run([sys.executable, "-c", s], check=True), repeats)
        if statement == "pass":
            base = seconds
            continue
        table.rows.append([name, seconds - base, "< 0.25" if name == "import steelyard" else ""])
    progress("")
    return table
