"""Pages as a user sees them: in a headless Chromium, opened from the disk."""

import re
from pathlib import Path

import pytest
import torch
from browser import Page, find_chromium, open_browser
from torch import nn

import steelyard
from steelyard.insight.report import Report
from steelyard.insight.report_page import write_report
from steelyard.tools import trained
from steelyard.tools.small_demo import GPT, VOCABULARY

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=owned=1>"
MOST_BYTES = 5_000_000
DESKTOP, PHONE = (1280, 900), (390, 844)


@pytest.fixture(scope="module")
def chromium() -> str:
    program = find_chromium()
    if program is None:
        pytest.skip("no chromium, and it cannot be installed")
    return program


@pytest.fixture(scope="module")
def gpt(tmp_path_factory) -> Path:
    """The page of a small GPT, with what causes its error."""
    path = tmp_path_factory.mktemp("gpt") / "report.html"
    torch.manual_seed(0)
    net = steelyard.compile(GPT().eval(), "nvfp4")
    batches = [torch.randint(0, VOCABULARY, (2, 64)) for _ in range(3)]
    net.report(path, batches, logits=True, attribute=True)
    return path


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory) -> Path:
    """The page of a trained model of 30 layers."""
    path = tmp_path_factory.mktemp("smollm2") / "report.html"
    smollm2 = trained.load()
    net = steelyard.compile(smollm2.model, "nvfp4", overrides=trained.OVERRIDES)
    tokens = smollm2.tokens(128)
    net.report(path, [{"input_ids": tokens, "labels": tokens}])
    return path


@pytest.fixture(params=["gpt", "smollm2"])
def path(request) -> Path:
    return request.getfixturevalue(request.param)


def texts(page: Page, selector: str) -> list[str]:
    return page.run(f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)")


def wait_for_figures(page: Page, inside: str, count: int) -> None:
    """Wait until figures are drawn: each is a canvas in a shadow of its element."""
    drawn = f"[...document.querySelectorAll('{inside} .chart > div > *')].filter((one) => one.shadowRoot)"
    page.wait(f"{drawn}.length >= {count}")


def find(page: Page, words: str) -> None:
    """Type words into the field above the rows."""
    box = "document.querySelector('input[type=search]')"
    page.run(f"{box}.value = {words!r}, {box}.dispatchEvent(new Event('input'))")


def check_quiet(page: Page) -> None:
    assert page.problems == []
    assert len(page.requests) == 1, "the page loads nothing but itself"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_page_shows_everything_without_a_word_in_the_console(chromium, path, size, dark, capsys):
    report = Report.load(path.with_suffix(".json"))
    assert path.stat().st_size <= MOST_BYTES
    with open_browser(chromium) as page:
        page.size(*size, dark=dark, mobile=size == PHONE)
        seconds = page.open(path)
        with capsys.disabled():
            print(f"\n{report.model}: {path.stat().st_size / 1e6:.2f} MB, shown after {seconds:.2f} s")
        assert texts(page, "h1") == [f"{report.model}{report.recipe}"]
        share = report.shares.quantized_flops / report.shares.flops
        assert f"{share:.1%}".replace("%", " %") in texts(page, ".figure .value")[0]
        assert len(texts(page, "tr.row")) == len(report.rows)
        wait_for_figures(page, "#map", 1)
        # Nothing is wider than the window.
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        assert page.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        page.run("document.querySelector('#memory').scrollIntoView({behavior: 'instant'})")
        wait_for_figures(page, "#memory", 1)
        check_quiet(page)


def test_a_row_opens_to_its_histograms_its_source_and_its_ir(chromium, path):
    report = Report.load(path.with_suffix(".json"))
    with open_browser(chromium) as page:
        page.size(*DESKTOP)
        page.open(path)
        height = "document.querySelector('tr.detail').offsetHeight"
        before = page.run(f"document.querySelector('tr.row').click(), {height}")
        page.run("document.querySelector('tr.detail').scrollIntoView({behavior: 'instant'})")
        # Of both operands: codes and scales, and the amax where there are several calls.
        wait_for_figures(page, "tr.detail", 4)
        assert page.run(height) == before, "nothing moves when figures are drawn"
        row = report.rows[0]
        detail = texts(page, "tr.detail")[0]
        assert row.source in detail
        assert row.code in detail
        assert row.kernel in detail
        assert texts(page, "tr.detail .stages h4") == [f"{n}. {s.name}" for n, s in enumerate(report.program.stages, 1)]
        stages = texts(page, "tr.detail .stages .ir")
        assert "scaled.matmul" in stages[1]
        assert "scaled.gemm" in stages[2]
        # What quantizing adds is marked as new.
        assert any("scaled.quantize" in line for line in texts(page, "tr.detail .stages > :nth-child(3) .op.new"))
        page.click("tr.row")
        page.wait("!document.querySelector('tr.detail')")
        check_quiet(page)


def test_a_layer_is_highlighted_in_two_stages_side_by_side(chromium, path):
    report = Report.load(path.with_suffix(".json"))
    with open_browser(chromium) as page:
        page.size(*DESKTOP)
        page.open(path)
        page.run("document.querySelectorAll('tr.row')[0].click()")
        page.click("tr.detail .plain")
        page.wait("document.querySelectorAll('.panes .ir .op.mark').length")
        left, right = report.program.stages[1:3]
        assert texts(page, ".panes .pane-head span")[0].startswith(f"{len(left.lines):,} lines")
        for side, stage in enumerate((left, right), 1):
            shown = texts(page, f".panes > :nth-child({side}) .op > span")
            assert shown == stage.lines
            number = report.program.layers.index(report.rows[0].layer)
            marked = [index for index, layer in enumerate(stage.layers) if layer == number]
            numbers = texts(page, f".panes > :nth-child({side}) .op.mark > i")
            assert [int(number) - 1 for number in numbers] == marked
        assert any("scaled.matmul" in line for line in texts(page, ".panes .op.gone"))
        assert any("scaled.gemm" in line for line in texts(page, ".panes .op.new"))
        check_quiet(page)


def test_rows_are_found_sorted_and_opened_from_the_map(chromium, gpt):
    report = Report.load(gpt.with_suffix(".json"))
    with open_browser(chromium) as page:
        page.size(*DESKTOP)
        page.open(gpt)
        find(page, "blocks.1 e2m1")
        shown = texts(page, "tr.row:not([hidden]) td:first-child")
        assert shown == [f"blocks.1.{name}" for name in ("qkv", "out", "up", "down")]
        find(page, "")
        errors = {row.layer: row.measured.relative_error for row in report.rows if row.measured}
        page.run("[...document.querySelectorAll('th button')].find((one) => one.textContent === 'error').click()")
        assert texts(page, "tr.row td:first-child")[: len(errors)] == sorted(errors, key=errors.get, reverse=True)
        wait_for_figures(page, "#map", 1)
        page.run("document.querySelector('#map').scrollIntoView({block: 'center', behavior: 'instant'})")
        # The cell at the top left is that of the first layer.
        x, y, width = page.run(
            "(() => { const box = document.querySelector('#map .chart > div').getBoundingClientRect();"
            " return [box.x, box.y, box.width]; })()"
        )
        for step in range(12, 60, 6):
            page.click_at(x + width * step / 300 + 40, y + 22)
            if page.run("Boolean(document.querySelector('tr.detail'))"):
                break
        assert texts(page, "tr.open td:first-child") == ["blocks.0.qkv"]
        for choice in page.run("[...document.querySelectorAll('#map [data-choice]')].map((one) => one.dataset.choice)"):
            page.click(f"#map [data-choice={choice}]")
            wait_for_figures(page, "#map", 1)
        check_quiet(page)


def test_the_theme_changes_on_request(chromium, gpt):
    with open_browser(chromium) as page:
        page.size(*DESKTOP)
        page.open(gpt)
        wait_for_figures(page, "#map", 1)
        ground = "getComputedStyle(document.body).backgroundColor"
        before = page.run(ground)
        page.click(".theme")
        assert page.run(ground) != before
        wait_for_figures(page, "#map", 1)
        check_quiet(page)


def test_text_of_a_model_stays_text(chromium, tmp_path):
    model = nn.Sequential()
    model.add_module(HOSTILE, nn.Linear(32, 32))
    model.add_module("1", nn.Linear(32, 32))
    net = steelyard.compile(model.eval(), "mxfp8")
    path = tmp_path / "report.html"
    report = net.report(path, [torch.randn(8, 32)])
    # A source line may hold anything, too.
    report.rows[0].code = report.rows[0].reason = HOSTILE
    report.notes.append(HOSTILE)
    write_report(report, path)
    with open_browser(chromium) as page:
        page.size(*DESKTOP)
        page.open(path)
        page.run("document.querySelectorAll('tr.row').forEach((row) => row.click())")
        page.run("document.querySelector('tr.detail').scrollIntoView({behavior: 'instant'})")
        wait_for_figures(page, "tr.detail", 4)
        page.run("document.querySelector('tr.detail .plain').click()")
        page.wait("document.querySelectorAll('.panes .ir .op.mark').length")
        assert texts(page, "tr.row td:first-child")[0] == HOSTILE
        assert page.run("document.querySelectorAll('img').length") == 0
        assert page.run("typeof owned") == "undefined"
        check_quiet(page)


def test_the_policy_stops_code_and_requests_that_others_put_into_a_page(chromium, gpt, tmp_path):
    path = tmp_path / "changed.html"
    injected = "<script>document.title = 'owned'</script><img src='https://example.com/x.png'>"
    path.write_text(re.sub("</body>", f"{injected}</body>", gpt.read_text()))
    with open_browser(chromium) as page:
        page.size(*DESKTOP)
        page.open(path)
        assert page.run("document.title") == "GPT in nvfp4"
        assert page.run("fetch('https://example.com').then(() => 'sent', () => 'stopped')") == "stopped"
        assert any("script-src" in problem for problem in page.problems)
        assert any("img-src" in problem for problem in page.problems)
        assert any("connect-src" in problem or "default-src" in problem for problem in page.problems)


def test_a_training_step_shows_its_gradients(chromium, tmp_path):
    torch.manual_seed(0)
    net = steelyard.compile(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)), "nvfp4")
    path = tmp_path / "report.html"
    report = net.report(path, [torch.randn(32, 64)], loss=lambda y, _: y.square().mean(), backward=True)
    with open_browser(chromium) as page:
        page.size(*DESKTOP)
        page.open(path)
        shown = sorted(report.gradients, key=lambda one: one.cosine)
        assert texts(page, "#gradients tbody td:first-child") == [one.parameter for one in shown]
        assert texts(page, "#gradients tbody td:nth-child(2)") == [f"{one.cosine:.4f}" for one in shown]
        assert {row.kind for row in report.rows} == {*texts(page, "tr.row td:nth-child(2)")}
        check_quiet(page)


def test_a_comparison_shows_error_against_speed(chromium, tmp_path):
    torch.manual_seed(0)
    batches = [torch.randint(0, VOCABULARY, (2, 32))]
    comparison = steelyard.compare(GPT().eval(), ["mxfp8", "nvfp4"], batches, logits=True)
    path = comparison.page(tmp_path / "compare.html")
    with open_browser(chromium) as page:
        for size in (DESKTOP, PHONE):
            page.size(*size, mobile=size == PHONE)
            page.open(path)
            wait_for_figures(page, "#picture", 1)
            assert texts(page, "#figures tbody b") == ["mxfp8", "nvfp4"]
            assert page.run("document.documentElement.scrollWidth <= innerWidth")
        assert page.problems == []
