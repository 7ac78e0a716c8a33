"""The documents show what really happens."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard import errors, recipes

ROOT = Path(__file__).parents[2]
# Attributes through which a page loads something, and what style sheets load.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc=["']?([^"'\s>]+)|<link\b[^>]*?\bhref=["']?([^"'\s>]+)"""
)
_LOADED_BY_STYLE = re.compile(r"""url\(["']?([^"')]+)|@import\s+["']([^"']+)""")


def load(name: str):
    """A module below docs/, which is no package."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


run_pages = load("run_pages")
PAGES = [page for page in run_pages.pages() if run_pages.blocks_of(page)]


# Pages whose programs compile whole models, several times.
SLOW = {
    f"docs/{name}.md"
    for name in (
        *("checkpoints", "disk-cache", "experts", "generation", "insight", "jax", "report"),
        *("integrations/diffusers", "integrations/hugging-face-trainer", "integrations/peft", "integrations/saving"),
        *("integrations/sentence-transformers", "integrations/transformers"),
    )
}


def page_case(page):
    name = page.relative_to(ROOT).as_posix()
    return pytest.param(page, id=name, marks=pytest.mark.slow if name in SLOW else ())


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize("page", [page_case(page) for page in PAGES])
def test_a_page_runs_from_its_first_line_to_its_last_and_shows_what_is_printed(page):
    differences = run_pages.run_page(page)
    assert not differences, run_pages.report(page, differences)


def test_most_pages_have_code_that_runs():
    names = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert {"README.md", "docs/quick-start.md", "docs/cuda.md", "docs/jax.md", "docs/recipes/nvfp4.md"} <= names


def test_generated_pages_are_up_to_date(capsys):
    assert load("generate").main(["--check"]) == 0, capsys.readouterr().err


def test_every_local_link_in_the_documents_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 20
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def page_of(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_output_that_is_not_printed_is_found_and_can_be_rewritten(tmp_path):
    page = page_of(tmp_path, '```python\nprint(1 + 1)\n```\n\n```text title="Output"\n3\n```\n')
    (difference,) = run_pages.run_page(page)
    assert difference.printed == "2\n"
    assert "page.md:6 shows what was not printed" in run_pages.report(page, [difference])
    run_pages.rewrite(page, [difference])
    assert run_pages.run_page(page) == []
    assert "3" not in page.read_text()


def test_three_dots_stand_for_any_text_and_for_no_other_text(tmp_path):
    code = "```python\nfor i in range(4): print(i, i * i)\n```\n"
    output = '```text title="Output"\n{}\n```\n'
    assert not run_pages.run_page(page_of(tmp_path, code + output.format("0 0\n...\n3 ...")))
    assert run_pages.run_page(page_of(tmp_path, code + output.format("0 0\n...\n3 8")))
    assert run_pages.run_page(page_of(tmp_path, code + output.format("1 1\n...")))


def test_blocks_of_a_page_share_names_and_files(tmp_path):
    text = (
        '```text title="numbers.txt"\n1\n2\n```\n'
        "```python\nfrom pathlib import Path\nnumbers = Path('numbers.txt').read_text().split()\n```\n"
        "```python\nprint(numbers)\n```\n```text title=\"Output\"\n['1', '2']\n```\n"
        "```console\n$ cat numbers.txt\n1\n2\n$ wc -l < numbers.txt\n3\n```\n"
    )
    (difference,) = run_pages.run_page(page_of(tmp_path, text))
    assert difference.printed.strip() == "2"


@pytest.mark.parametrize("fence", ["```", "```bash", "```python numbered", "```mlir", '```text title="Output"'])
def test_a_block_that_no_rule_covers_is_refused(tmp_path, fence):
    with pytest.raises(run_pages.PageError, match=r"page\.md:1: no rule says how to run the block"):
        run_pages.blocks_of(page_of(tmp_path, f"{fence}\n1\n```\n"))


def test_a_command_that_fails_is_an_error(tmp_path):
    with pytest.raises(run_pages.PageError, match=r"page\.md:2: `cat no-such-file` ends with code 1"):
        run_pages.run_page(page_of(tmp_path, "```console\n$ cat no-such-file\n```\n"))


def test_an_error_in_a_block_has_the_line_of_the_page(tmp_path):
    page = page_of(tmp_path, "# Title\n\n```python\nx = 1\ny = x / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run_pages.run_page(page)
    assert caught.traceback[-1].lineno == 4  # counted from 0


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_loads_nothing_from_other_hosts(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        for match in _LOADED.finditer(page.read_text()):
            target = match[1] or match[2]
            assert not re.match(r"(?:https?:)?//", target), f"{page.name} loads {target}"
    for style in (tmp_path / "site").rglob("*.css"):
        for match in _LOADED_BY_STYLE.finditer(style.read_text()):
            target = match[1] or match[2]
            assert not re.match(r"(?:https?:)?//", target), f"{style.name} loads {target}"
    # The reference is made from docstrings: each public name is on its page.
    names = {
        "compile": ["steelyard.compile"],
        "recipes": [f"steelyard.recipes.{type(recipes.get(name)).__name__}" for name in recipes.NAMES],
        "tensor": [f"steelyard.tensor.{name}" for name in importlib.import_module("steelyard.tensor").__all__],
        "jax": [f"steelyard.jax.{name}" for name in importlib.import_module("steelyard.jax").__all__],
        "errors": [f"steelyard.errors.{name}" for name, value in vars(errors).items() if isinstance(value, type)],
    }
    # A module and its function have the same name, and the module's hides the other.
    hidden = {f"steelyard.jax.{name}": f"steelyard.jax.{name}.{name}" for name in ("dense", "grouped_dense")}
    for page, wanted in names.items():
        reference = (tmp_path / "site" / "api" / f"{page}.html").read_text()
        assert not [name for name in wanted if f'id="{hidden.get(name, name)}"' not in reference], page
    assert "whose matrix multiplications run" in (tmp_path / "site" / "api" / "compile.html").read_text()
