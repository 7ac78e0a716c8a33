"""The short form of ops, types and schemes: round trips, places and errors."""

import itertools
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_mlir import ir

from steelyard.dialect import make_context, parse_module, print_module
from steelyard.dialect.assembly.formats import Format, Kind, formats
from steelyard.dialect.assembly.printer import shorten_module
from steelyard.dialect.assembly.reader import translate
from steelyard.dialect.assembly.scheme_names import full_text, name_of, named_schemes
from steelyard.errors import AssemblyError, ConstraintError
from steelyard.formats.schemes import CHOICES, FAMILIES, Scheme

BLOCKS = sorted({block for _, blocks, _ in FAMILIES.values() for block in blocks})
CONTEXT = make_context()
CONTEXT.allow_unregistered_dialects = True

names = st.text(string.ascii_letters + string.digits + "$._-", min_size=1, max_size=6).filter(
    lambda name: not name[0].isdigit() or name.isdigit()
)
texts = st.one_of(
    st.sampled_from(["", "fprop", "at", "none", 'say "no"', "scaled.gemm", '"scaled.free"(%x)', "blocks.0.up", "loc("]),
    st.text(max_size=8),
)
plain_schemes = st.sampled_from([full_text(scheme) for scheme in named_schemes().values()])
odd_schemes = st.sampled_from(
    [
        '#scaled.scheme<i8, "1x64", f32, {custom = "mine"}>',
        '#scaled.scheme<f8E4M3FN, "tensor", f32, {epsilon = 1.000000e-06 : f32}>',
        '#scaled.scheme<f8E4M3FN, "odd > { block", f32, {rule = 3 : i64}>',
        '#scaled.scheme<complex<f32>, "", tensor<4xf32>, {}>',
    ]
)
schemes = st.one_of(plain_schemes, odd_schemes)
shapes = st.lists(st.one_of(st.integers(0, 9999).map(str), st.just("?")), max_size=3)
elements = st.sampled_from(["f32", "bf16", "f16", "i8", "complex<f32>", "vector<2xf32>"])
plain_types = st.one_of(
    st.builds(lambda shape, element: f"tensor<{''.join(f'{n}x' for n in shape)}{element}>", shapes, elements),
    st.sampled_from(["!torch.vtensor<[2,?],f32>", "index", "!torch.int", "tensor<*xf32>", "none", "(i1) -> (i2, i3)"]),
)
copies = st.one_of(schemes, st.just("none"))
quantized_types = st.builds(lambda base, row, col: f"!scaled.tensor<{base}, {row}, {col}>", plain_types, copies, copies)
types = st.one_of(plain_types, quantized_types)
attributes = {
    Kind.WORD: texts.map(lambda text: ir.StringAttr.get(text)),
    Kind.STRING: texts.map(lambda text: ir.StringAttr.get(text)),
    Kind.INTEGER: st.integers(-(2**63), 2**63 - 1).map(
        lambda n: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), n)
    ),
    Kind.INTEGERS: st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(lambda n: ir.DenseI64ArrayAttr.get(n)),
    Kind.FLOAT: st.floats().map(lambda number: ir.FloatAttr.get_f64(number)),
    Kind.SCHEME: schemes.map(lambda text: ir.Attribute.parse(text)),
    Kind.FLAG: st.booleans().map(lambda flag: ir.BoolAttr.get(flag)),
    Kind.SYMBOL: texts.filter(bool).map(lambda text: ir.FlatSymbolRefAttr.get(text)),
}
sizes = st.one_of(attributes[Kind.STRING], attributes[Kind.INTEGER])
attributes |= {Kind.SIZE: sizes, Kind.ARGUMENTS: st.lists(sizes, max_size=3).map(lambda items: ir.ArrayAttr.get(items))}
others = st.one_of(
    texts.map(lambda text: ir.StringAttr.get(text)),
    types.map(lambda text: ir.TypeAttr.get(ir.Type.parse(text))),
    schemes.map(lambda text: ir.Attribute.parse(text)),
    st.sampled_from(
        ["unit", "affine_map<(d0) -> (d0 + 1)>", "[1 : i8, @symbol]", "{a = 1 : i64}", "dense<1> : tensor<2xi8>"]
    ).map(lambda text: ir.Attribute.parse(text)),
)
other_names = st.sampled_from(["note", "scaled.path", "scaled.gemm", "a b", "=", "lhs_scheme", "{"])


@st.composite
def ops(draw, format_: Format) -> ir.Module:
    """A module with a source of values and one op, which need not verify."""
    counts = [draw(st.integers(v.fewest, min(v.most, 3))) for v in format_.operands]
    result_count = draw(st.integers(format_.fewest_results, len(format_.results)))
    with CONTEXT, ir.Location.unknown():
        module = ir.Module.create()
        operand_types = [ir.Type.parse(draw(types)) for _ in range(sum(counts))]
        result_types = [ir.Type.parse(draw(types)) for _ in range(result_count)]
        values = {item.name: draw(attributes[item.kind]) for item in format_.items if item.kind in attributes}
        # Defaults, which are absent from the text, half of the time.
        for item in format_.items:
            if item.default is not None and draw(st.booleans()):
                values[item.name] = ir.Attribute.parse(item.default)
        values |= draw(st.dictionaries(other_names, others, max_size=2))
        if format_.has_operand_segments:
            values["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get(counts)
        if format_.has_result_segments:
            there = [int(index < result_count) for index in range(len(format_.results))]
            values["resultSegmentSizes"] = ir.DenseI32ArrayAttr.get(there)
        with ir.InsertionPoint(module.body):
            source = ir.Operation.create("test.source", results=operand_types)
            ir.Operation.create(format_.op_name, operands=list(source.results), results=result_types, attributes=values)
    return module


def unverified(generic: str) -> ir.Module:
    """A module whose `scaled` ops are renamed to another dialect, so that no verifier runs."""
    return ir.Module.parse(generic.replace('"scaled.', '"unverified.'), CONTEXT)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", sorted(formats()))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_op_is_the_same_after_both_forms(name, data):
    module = data.draw(ops(formats()[name]))
    generic = module.operation.get_asm(assume_verified=True)
    short = shorten_module(generic)
    assert f'"{name}"' not in [line.partition("(")[0].rpartition("= ")[2].strip() for line in short.splitlines()]
    translated = translate(short).text
    again = unverified(translated).operation.get_asm()
    assert again == unverified(generic).operation.get_asm()
    assert shorten_module(again.replace('"unverified.', '"scaled.')) == short


@settings(deadline=None)
@given(type_=types)
def test_any_type_is_the_same_after_both_forms(type_):
    with CONTEXT:
        full = str(ir.Type.parse(type_))
    short = shorten_module(f'"test.op"() : () -> ({full})')
    module = parse_module(short, CONTEXT)
    assert str(module.body.operations[0].result.type) == full


def test_every_scheme_without_a_bound_or_a_quantizer_has_a_name_of_its_own():
    options = [[(name, value) for value in values] for name, values in CHOICES.items()]
    options += [[(name, value) for value in (False, True)] for name in ("power_of_two", "rht")]
    found = {}
    for element, block, scale in itertools.product(
        ("f8E4M3FN", "f8E5M2", "f4E2M1FN"), BLOCKS, ("f32", "f8E8M0FNU", "f8E4M3FN")
    ):
        try:
            Scheme(element, block, scale, second_level="tensor" if scale == "f8E4M3FN" else "none")
        except ConstraintError:
            continue
        for chosen in itertools.product(*options):
            try:
                scheme = Scheme(element, block, scale, **dict(chosen))
            except ConstraintError:
                continue
            found[name_of(scheme)] = scheme
            assert named_schemes()[name_of(scheme)] == scheme
    assert found == named_schemes()


def test_names_say_what_the_scheme_is():
    mx = Scheme("f8E4M3FN", "32x1", "f8E8M0FNU", layout="gemm")
    gradient = Scheme("f4E2M1FN", "1x16", "f8E4M3FN", rounding="stochastic", rht=True, second_level="tensor")
    assert name_of(mx) == "mxfp8_32x1_gemm"
    assert name_of(Scheme("f8E5M2", "tensor", "f32", source="delayed")) == "fp8_e5m2_tensor_delayed"
    assert name_of(gradient) == "nvfp4_1x16_stochastic_rht"
    assert name_of(Scheme("f8E4M3FN", "row", "f32", power_of_two=True)) == "fp8_row_power_of_two"
    assert name_of(Scheme("f4E2M1FN", "1x32", "f8E8M0FNU", rule="even")) == "mxfp4_1x32_even"
    assert name_of(Scheme("f4E2M1FN", "1x32", "f8E4M3FN", second_level="tensor")) == "nvfp4_1x32"
    assert name_of(Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="row")) == "nvfp4_1x16_per_row"


def test_every_op_stands_where_the_user_wrote_it():
    text = """func.func @f(%x: !scaled.tensor<8x64xf32, #mxfp8_1x32>, %é: tensor<f32>) {
      %0 = scaled.dequantize rowwise %x : !scaled.tensor<8x64xf32, #mxfp8_1x32> -> tensor<8x64xf32> scaled.free %0
        : tensor<8x64xf32>   scaled.free %x : !scaled.tensor<8x64xf32, #mxfp8_1x32> "test.op"() : () -> ()
      "test.op"() : () -> () return }
    """.replace("é", "e")
    module = parse_module(text, CONTEXT)
    (function,) = module.body.operations
    block = function.regions[0].blocks[0]
    places = [place(text, "func.func"), place(text, "%x:"), place(text, "%e:")]
    places += [place(text, "scaled.dequantize"), place(text, "scaled.free %0"), place(text, "scaled.free %x")]
    places += [place(text, '"test.op"'), place(text, '"test.op"', 2), place(text, "return")]
    found = [function.location, *(argument.location for argument in block.arguments)]
    found += [op.location for op in block.operations]
    assert [str(location) for location in found] == [f'loc("-":{line}:{column})' for line, column in places]


def place(text: str, word: str, which: int = 1) -> tuple[int, int]:
    offset = -1
    for _ in range(which):
        offset = text.index(word, offset + 1)
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


FREE = "func.func @f(%x: tensor<f32>) {\n  "


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("scaled.free : tensor<f32>", 2, 15, "expected a value for 'value' in 'scaled.free', got ':'"),
        ("scaled.free %x", 3, 1, "expected '{' or ':' in 'scaled.free', got 'return'"),
        ("scaled.free %x : ", 3, 1, None),
        ("scaled.free %x {a = [1 : tensor<f32>", 2, 18, "expected '}' to close the attributes"),
        ("scaled.free %x : tensor<f32>, tensor<f32>", 2, 20, "expected 1 operand types (%x) in 'scaled.free', got 2"),
        ("scaled.fee %x : tensor<f32>", 2, 3, "unknown op 'scaled.fee'; did you mean 'scaled.free'?"),
        ("%0 = scaled.free = %x", 2, 20, "expected a value for 'value' in 'scaled.free', got '='"),
        (
            "%0 = scaled.amax %x rht per_row : tensor<f32> -> tensor<f32>",
            2,
            27,
            "expected '{' or ':' in 'scaled.amax', got 'per_row'",
        ),
        ("%0 = scaled.quantize %x", 2, 24, "expected a word or a string for 'role' in 'scaled.quantize', got '%x'"),
        ("%0 = scaled.quantize input %x rng(4)", 2, 37, "expected a value for 'rng' in 'scaled.quantize', got '4'"),
        (
            "%0 = scaled.quantize input %x bias(%x)",
            *(2, 33),
            "expected 'ends', 'scale', 'rng', 'at', '{' or ':' in 'scaled.quantize', got 'bias'",
        ),
        (
            "%0 = scaled.quantize input %x at layer",
            2,
            36,
            "expected a string for 'layer' in 'scaled.quantize', got 'layer'",
        ),
        (
            "%0 = scaled.pad %x to multiples(1.5)",
            2,
            35,
            "expected an integer for 'multiples' in 'scaled.pad', got '1.5'",
        ),
        (
            "%0 = scaled.pad %x to multiples(1) : tensor<f32> tensor<f32>",
            2,
            52,
            "expected '->' in 'scaled.pad', got 'tensor'",
        ),
        (
            "%0 = scaled.pad %x to multiples(1) : tensor<f32> -> tensor<f32>, tensor<f32>",
            *(2, 55),
            "expected the types of the results (result) in 'scaled.pad', got 2 types",
        ),
        ("%0 = scaled.pad %x to multiples(1) : %x", 2, 40, "expected a type in 'scaled.pad', got '%x'"),
        (
            "%0:2 = scaled.update_scale %x, %x, %x for fp8",
            *(2, 45),
            "expected a scheme, as in #mxfp8_1x32 for 'scheme' in 'scaled.update_scale', got 'fp8'",
        ),
        (
            "scaled.launch amax_f32() blocks(1)",
            2,
            17,
            "expected a symbol, as in @amax_f32 for 'kernel' in 'scaled.launch', got 'amax_f32'",
        ),
        ("scaled.launch @amax_f32(%x)", 2, 27, "expected an integer or a string for 'arguments' in 'scaled.launch'"),
        ("scaled.launch @amax_f32() blocks(1.5)", 2, 36, "expected an integer or a string for 'blocks'"),
        ("scaled.free %x : !scaled.tensor<4xf32, #mxfp8_1x32", 2, 20, "expected '>' to close !scaled.tensor<"),
        ("scaled.free %x : !scaled.tensor<4xf32>", 2, 20, None),
        # MLIR's own errors, in the translated part and after it.
        ("scaled.free %y : tensor<f32>", 2, 15, "use of undeclared SSA value name"),
        ("scaled.free %x : !scaled.tensor<4xf32, #mxfp8_9x9>", 2, 20, "undefined symbol alias id 'mxfp8_9x9'"),
        (
            "scaled.free %x {a = 1, a = 2} : tensor<f32>",
            2,
            26,
            "duplicate key 'a' in dictionary attribute",
        ),
        ("scaled.free %x : tensor<f32> scaled.free %é : tensor<f32>", 2, 44, None),
        ("scaled.free %x : !scaled.tensor<4xf32, #mxfp8_1x32>", 2, 15, None),
    ],
)
def test_errors_name_the_place_and_what_was_expected(text, line, column, message):
    with pytest.raises(AssemblyError) as caught:
        parse_module(f"{FREE}{text}\nreturn\n}}\n", CONTEXT)
    assert (caught.value.line, caught.value.column) == (line, column), caught.value
    assert message is None or message in caught.value.message


def test_an_op_that_its_format_cannot_spell_stays_generic():
    text = """module {
  %0 = "test.source"() : () -> tensor<8xf32>
  "scaled.free"(%0, %0) : (tensor<8xf32>, tensor<8xf32>) -> ()
  %1 = "scaled.pad"(%0) {multiples = "16"} : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "scaled.dequantize"(%0) : (tensor<8xf32>) -> tensor<8xf32>
  %3:2 = "scaled.transpose"(%0) : (tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
  %4 = "scaled.produce_quantize"(%0) {epsilon = 0 : i32} : (tensor<8xf32>) -> tensor<8xf32>
}
"""
    assert shorten_module(text) == text
    assert translate(text).text == text


def test_strings_comments_and_names_are_left_alone():
    text = """module attributes {scaled.gemm = "scaled.free %x : !scaled.tensor<4xf32, #mxfp8_1x32>"} {
  // scaled.free %x : #mxfp8_1x32
  %scaled.free = "test.op"() {scaled.pad} : () -> f32 loc("scaled.free"("scaled.free":1:2))
  "test.op"(%scaled.free) {scaled.pad, a = @scaled.free} : (f32) -> ()
}
"""
    assert translate(text).text == text
    module = parse_module(text, CONTEXT)
    assert (
        print_module(module.operation, debug_info=True, local_scope=True).count('"scaled.free"("scaled.free":1:2)') == 1
    )
