"""What the documents show is what happens."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_pages_are_up_to_date():
    run = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_readme_example_runs_and_quantizes():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert '"scaled.gemm"' in run.stdout
    assert "#nvfp4_16x16" in run.stdout
    assert "scaled.matmul" not in run.stdout


def test_readme_shows_what_the_demo_prints():
    demo = subprocess.run(
        [sys.executable, "-m", "steelyard.tools.cli", "demo"], capture_output=True, text=True, check=True
    )
    (shown,) = re.findall(r"`make demo` ends with:\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for line in shown.splitlines():
        assert line.strip() == "..." or line in demo.stdout.splitlines()


def test_every_local_link_in_the_documents_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert len(pages) > 4
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
