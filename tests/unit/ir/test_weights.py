"""The key and the form of a weight: weights made alike have equal keys in all programs, and others never do."""

from dataclasses import replace

import pytest
from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.ir.functions import functions_of
from steelyard.ir.weights import WeightForm, is_weight, renamed_key, weight_form, weight_key
from steelyard.passes import build_pass_manager, parse_pipeline

MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU")
FP4 = Scheme("f4E2M1FN", "16x16", "f8E4M3FN", second_level="tensor")
ALIASES = """
#mx = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>
#mx_floor = #scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {rule = "floor"}>
#mx_columns = #scaled.scheme<f8E4M3FN, "32x1", f8E8M0FNU, {}>
#own = #scaled.scheme<i8, "1x64", f32, {custom = "own"}>
#delayed = #scaled.scheme<f8E4M3FN, "tensor", f32, {source = "delayed"}>
#fp4 = #scaled.scheme<f4E2M1FN, "16x16", f8E4M3FN, {second_level = "tensor"}>
#fp4_rows = #scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>
"""
PLAIN, TURNED = "!torch.vtensor<[32,64],f32>", "!torch.vtensor<[64,32],f32>"
TRANSPOSE = f"%v = torch.aten.t %w : {PLAIN} -> {TURNED}"


def quantized(source: str, shape: str, row: str = "#mx", col: str = "none", extra: str = "", layer: str = "") -> str:
    """An op that quantizes a value, as text; `extra` is a scale."""
    tensor = f"!torch.vtensor<[{shape.replace('x', ',')}],f32>"
    operands, types = (f"{source}, {extra}", f"{tensor}, !torch.vtensor<[],f32>") if extra else (source, tensor)
    sizes = f"operandSegmentSizes = array<i32: 1, {int(bool(extra))}, 0, 0>, resultSegmentSizes = array<i32: 1, 0>"
    attributes = f'{{layer = "{layer}", {sizes}, role = "weight"}}'
    return (
        f'"scaled.quantize"({operands}) {attributes} : ({types}) -> !scaled.tensor<tensor<{shape}xf32>, {row}, {col}>'
    )


def program(body: str, shape: str, row: str = "#mx", col: str = "none", arguments: str = "") -> str:
    """A function whose %q is a quantized parameter, which it returns."""
    head = f'func.func @step(%w: {PLAIN} {{scaled.parameter = "up.weight"}}{arguments})'
    result = f"!scaled.tensor<tensor<{shape}xf32>, {row}, {col}>"
    return f"{ALIASES}\n{head} -> {result} {{\n{body}\nreturn %q : {result}\n}}"


def made(text: str, pipeline: str = "scaled-hoist-weights") -> list[tuple[str, WeightForm | None]]:
    """Key and form of each weight of a program."""
    context = make_context()
    module = ir.Module.parse(text, context)
    build_pass_manager(parse_pipeline(pipeline), context).run(module.operation)
    functions = [function for function in functions_of(module.operation) if is_weight(function)]
    return [(weight_key(function), weight_form(function)) for function in functions]


STATE = ', %s: !torch.vtensor<[],f32> {{scaled.state = "{name}"}}'
SLICE = """
%begin = torch.constant.int {begin}
%end = torch.constant.int {end}
%one = torch.constant.int 1
%zero = torch.constant.int 0
%v = torch.aten.slice.Tensor %w, %zero, %begin, %end, %one :
  !torch.vtensor<[32,64],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[8,64],f32>
%q = """

MAKINGS = {
    "plain": program(f"%q = {quantized('%w', '32x64')}", "32x64"),
    "another rule": program(f"%q = {quantized('%w', '32x64', '#mx_floor')}", "32x64", "#mx_floor"),
    "both copies": program(f"%q = {quantized('%w', '32x64', col='#mx_columns')}", "32x64", col="#mx_columns"),
    "transposed": program(f"{TRANSPOSE}\n%q = {quantized('%v', '64x32')}", "64x32"),
    "own quantizer": program(f"%q = {quantized('%w', '32x64', '#own', layer='up')}", "32x64", "#own"),
    "own quantizer of another layer": program(
        f"%q = {quantized('%w', '32x64', '#own', layer='down')}", "32x64", "#own"
    ),
    "first rows": program(SLICE.format(begin=0, end=8) + quantized("%v", "8x64"), "8x64"),
    "other rows": program(SLICE.format(begin=8, end=16) + quantized("%v", "8x64"), "8x64"),
    "a scale": program(
        f"%q = {quantized('%w', '32x64', '#delayed', extra='%s')}",
        "32x64",
        "#delayed",
        arguments=STATE.format(name="a"),
    ),
    "another scale": program(
        f"%q = {quantized('%w', '32x64', '#delayed', extra='%s')}",
        "32x64",
        "#delayed",
        arguments=STATE.format(name="b"),
    ),
}


def test_unequal_makings_have_unequal_keys():
    keys = {case: made(text)[0][0] for case, text in MAKINGS.items()}
    assert len(set(keys.values())) == len(MAKINGS), keys


@pytest.mark.parametrize("case", ["plain", "both copies", "transposed"])
def test_names_of_layers_and_parameters_do_not_matter(case):
    ((key, form),) = made(MAKINGS[case])
    renamed = MAKINGS[case].replace('layer = ""', 'layer = "down"').replace("up.weight", "down.weight")
    assert renamed.count("down") == 2
    assert made(renamed) == [(key, form)]


def test_a_key_with_other_state_is_that_of_a_program_with_that_state():
    (a, _), (b, _) = made(MAKINGS["a scale"])[0], made(MAKINGS["another scale"])[0]
    assert renamed_key(a, ("b",)) == b
    assert renamed_key(b, ("a",)) == a


def test_equal_makings_have_equal_keys_in_other_programs():
    """The number of the function and the rest of the program do not matter."""
    other = f"""{ALIASES}
    func.func @forward(%x: {PLAIN}, %u: {TURNED} {{scaled.parameter = "down.weight"}},
                       %w: {PLAIN} {{scaled.parameter = "up.weight"}})
        -> (!scaled.tensor<tensor<64x32xf32>, #mx, none>, !scaled.tensor<tensor<32x64xf32>, #mx, none>, {PLAIN}) {{
      %p = {quantized("%u", "64x32")}
      %q = {quantized("%w", "32x64")}
      %r = torch.aten.relu %x : {PLAIN} -> {PLAIN}
      return %p, %q, %r :
        !scaled.tensor<tensor<64x32xf32>, #mx, none>, !scaled.tensor<tensor<32x64xf32>, #mx, none>, {PLAIN}
    }}"""
    ((plain, form),) = made(MAKINGS["plain"])
    found = dict(made(other))
    assert len(found) == 2
    assert found[plain] == form == WeightForm(MX)


@pytest.mark.parametrize(
    ("case", "form"),
    [
        ("plain", WeightForm(MX)),
        ("transposed", WeightForm(MX, is_transposed=True)),
        ("a scale", WeightForm(Scheme("f8E4M3FN", "tensor", "f32", source="delayed"))),
        ("both copies", None),
        ("first rows", None),
    ],
)
def test_form_is_that_of_one_rowwise_copy_of_the_whole_parameter(case, form):
    ((_, found),) = made(MAKINGS[case])
    assert found == form


GEMM = f"""{ALIASES}
func.func @step(%x: !scaled.tensor<tensor<8x64xf32>, #fp4_rows, none>,
                %w: {PLAIN} {{scaled.parameter = "up.weight"}}) -> !torch.vtensor<[8,32],f32> {{
  %q = {quantized("%w", "32x64", "#fp4")}
  %y = "scaled.gemm"(%x, %q) {{batch_dims = 0 : i64, epilogue = "none", kind = "fprop", layer = "up",
    operandSegmentSizes = array<i32: 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0>}} :
    (!scaled.tensor<tensor<8x64xf32>, #fp4_rows, none>, !scaled.tensor<tensor<32x64xf32>, #fp4, none>)
    -> !torch.vtensor<[8,32],f32>
  return %y : !torch.vtensor<[8,32],f32>
}}"""


def test_passes_that_change_a_weight_say_so():
    ((key, form),) = made(GEMM)
    ((packed_key, packed_form),) = made(GEMM, "scaled-hoist-weights,scaled-pack-weights{target=cpu}")
    ((native_key, native_form),) = made(GEMM, "scaled-hoist-weights,scaled-legalize{target=cuda:sm_100a}")
    assert form == WeightForm(FP4)
    assert packed_form == replace(form, layout="packed")
    assert native_form == replace(form, layout="gemm", multiples=(16, 32))
    assert len({key, packed_key, native_key}) == 3


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_lowering_keeps_what_is_said(target):
    (before,) = made(MAKINGS["transposed"])
    lowered = f"scaled-lower-storage,scaled-select-kernels{{target={target}}},scaled-plan-memory"
    assert made(MAKINGS["transposed"], f"scaled-hoist-weights,{lowered}") == [before]


@pytest.mark.parametrize("text", ["7 : i64", "{}", '{scheme = "mx"}', "{packed, transposed}"])
def test_a_form_that_is_none_is_refused(text):
    with make_context(), pytest.raises(ConstraintError, match="weight_form_c1"):
        WeightForm.from_attribute(ir.Attribute.parse(text))


@pytest.mark.parametrize("gemm", ["unit", "array<i64: 16>", "array<i64: 16, 0>", "array<i32: 16, 32>", "array<i64>"])
def test_multiples_of_a_form_are_two(gemm):
    with make_context():
        scheme = WeightForm(MX).to_attribute()["scheme"]
        attribute = ir.DictAttr.get({"scheme": scheme, "gemm": ir.Attribute.parse(gemm)})
        with pytest.raises(ConstraintError, match="weight_form_c1"):
            WeightForm.from_attribute(attribute)


FORMS = [WeightForm(MX), WeightForm(FP4, True, "packed"), WeightForm(MX, False, "gemm", (16, 32))]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_form_is_what_its_attribute_says(form):
    with make_context():
        assert WeightForm.from_attribute(form.to_attribute()) == form
