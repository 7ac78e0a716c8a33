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
    assert "2 GEMMs quantized, 0 left in high precision" in run.stdout
    assert '"scaled.gemm"' in run.stdout


def test_training_page_runs_from_top_to_bottom():
    code = "".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs/training.md").read_text(), re.DOTALL))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # The first layer's input needs no gradient.
    assert "5 GEMMs quantized, 0 left in high precision" in run.stdout
    assert "func.func @backward" in run.stdout
    assert "['_steelyard.rng']" in run.stdout


def test_readme_shows_what_the_demo_prints():
    command = [sys.executable, "-m", "steelyard.tools.cli", "demo"]
    demo = subprocess.run(command, capture_output=True, text=True, check=True)
    (shown,) = re.findall(r"`make demo` prints.*?```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown in demo.stdout
    assert "9 GEMMs quantized, 2 left in high precision" in demo.stdout


def test_every_local_link_in_the_documents_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert len(pages) > 4
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
