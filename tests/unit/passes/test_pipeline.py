"""Pipelines as text."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.errors import PipelineError
from steelyard.passes import all_passes, build_pass_manager, parse_pipeline
from steelyard.passes.pipeline.text import parse_options, run_pass_by_pass, split_top_level

CONTEXT = make_context()


def names(text: str) -> list[tuple[str, bool]]:
    """Each element's name, and whether it is one of ours."""
    return [(element.name, element.run is not None) for element in parse_pipeline(text)]


def test_our_passes_and_mlirs_mix():
    text = "scaled-apply-recipe{recipe=mxfp8},canonicalize,cse,func.func(cse,canonicalize{max-iterations=2})"
    expected = [("scaled-apply-recipe", True), ("canonicalize", False), ("cse", False), ("func.func", False)]
    assert names(text) == expected
    assert names(f"builtin.module({text})") == expected
    assert names("") == names("  ") == []


def test_a_named_pipeline_expands_with_its_options():
    elements = parse_pipeline("steelyard-quantized{recipe=nvfp4}")
    options = 'recipe=nvfp4 overrides="" attention=false unmatched=fail'
    assert elements[0].text == f"scaled-apply-recipe{{{options}}}"
    assert [element.name for element in elements[-3:]] == ["cse", "scaled-canonicalize", "scaled-verify-stage"]


DEAD_CODE = """
func.func @f(%x: !torch.vtensor<[8,64],f32>, %w: !torch.vtensor<[48,64],f32>) -> !torch.vtensor<[8,48],f32> {
  %dead = torch.constant.int 7
  %none = torch.constant.none
  %y = torch.aten.linear %x, %w, %none : !torch.vtensor<[8,64],f32>, !torch.vtensor<[48,64],f32>, !torch.none -> !torch.vtensor<[8,48],f32>
  return %y : !torch.vtensor<[8,48],f32>
}
"""  # noqa: E501


def test_passes_one_at_a_time():
    module = ir.Module.parse(DEAD_CODE, CONTEXT)
    found = [
        (name, "aten.linear" in str(after), "scaled.matmul" in str(after), "constant.int 7" in str(after))
        for name, after in run_pass_by_pass(module, parse_pipeline("cse,scaled-raise-gemms"))
    ]
    assert found == [("cse", True, False, False), ("scaled-raise-gemms", False, True, False)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func(scaled-canonicalize)", "cannot be nested in func.func"),
        ("func.func(cse,steelyard-quantized)", "cannot be nested in func.func"),
        ("scaled-canonicalize{max-rewrites=1", "unbalanced"),
        ("cse)", "unbalanced"),
        ("scaled-canonicalize(cse)", "options of scaled-canonicalize must stand in braces"),
        ("scaled-canonicalize{max-rewrites=}", "must be an int from 0 to 2147483647, got ''"),
        ("scaled-canonicalize{max-rewrites=99999999999999999999}", "must be an int from 0"),
        ("scaled-canonicalize{max-rewrites=-5}", "must be an int from 0"),
        ("scaled-canonicalize{fast}", "has no option 'fast'"),
        ("scaled-apply-recipe", "needs the option 'recipe'"),
        ("steelyard-quantized{speed=1}", "has no option 'speed'; its options: recipe"),
        ("scaled-apply-recipe{recipe='a}", "unbalanced quote"),
        (",cse", "a pass name must stand here"),
        ("cse,,cse", "a pass name must stand here"),
    ],
)
def test_wrong_text_is_refused(text, message):
    with pytest.raises(PipelineError, match=message.replace("(", r"\(")):
        parse_pipeline(text)


def test_an_unknown_pass_gets_a_suggestion():
    with pytest.raises(PipelineError, match="did you mean scaled-canonicalize"):
        build_pass_manager(parse_pipeline("scaled-canonicalise"), make_context())


@given(st.text(alphabet="abcs-_{}(),='\"\\. \0", max_size=40) | st.text(max_size=40))
def test_any_text_parses_or_is_refused(text):
    with suppress(PipelineError):
        build_pass_manager(parse_pipeline(text), CONTEXT)


def test_splitting_respects_brackets_and_quotes():
    assert split_top_level("a{x=1,2},b(c,d),'e,f'") == ["a{x=1,2}", "b(c,d)", "'e,f'"]
    assert parse_options('recipe=mxfp8 overrides="lm_head, layers.0" flag', "p") == [
        ("recipe", "mxfp8"),
        ("overrides", "lm_head, layers.0"),
        ("flag", ""),
    ]


def test_an_exception_in_a_pass_reaches_the_caller(monkeypatch):
    from steelyard.passes.pipeline import registry

    def explode(module):
        """Raise."""
        raise ZeroDivisionError("boom")

    monkeypatch.setitem(registry._PASSES, "scaled-explode", registry.Pass("scaled-explode", explode, (), "Raise."))
    module = ir.Module.parse("module {}", CONTEXT)
    with pytest.raises(ZeroDivisionError, match="boom"):
        build_pass_manager(parse_pipeline("scaled-explode"), CONTEXT).run(module.operation)


def test_every_pass_has_a_description_a_file_and_a_lit_test():
    from pathlib import Path

    import steelyard.passes

    for name, entry in all_passes().items():
        assert entry.summary.endswith("."), name
        stem = name.removeprefix("scaled-")
        assert (Path(steelyard.passes.__file__).parent / f"{stem.replace('-', '_')}.py").exists()
        assert (Path(__file__).parents[2] / "passes" / f"{stem}.mlir").exists()
