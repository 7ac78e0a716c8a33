"""Schemes as data, as attributes and as text."""

import io

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from torch_mlir import ir

from steelyard.dialect import make_context, parse_module, print_module
from steelyard.dialect.attributes import SchemeAttr
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import FAMILIES, Scheme

CONTEXT = make_context()
CONTEXT.allow_unregistered_dialects = True


@st.composite
def schemes(draw) -> Scheme:
    """Any legal scheme, or a custom one."""
    options = {
        "source": st.sampled_from(["current", "delayed"]),
        "power_of_two": st.booleans(),
        "rounding": st.sampled_from(["nearest", "stochastic"]),
        "rht": st.booleans(),
        "rule": st.sampled_from(["rceil", "floor", "ceil", "even"]),
        "second_level": st.sampled_from(["none", "tensor", "row"]),
        "four_over_six": st.sampled_from(["none", "mae", "mse"]),
        "epsilon": st.sampled_from([0.0, 0.5, 2.0**-20]),
        "layout": st.sampled_from(["compact", "gemm"]),
        "custom": st.sampled_from(["", "", "mine", "2nd try"]),
    }
    chosen = {name: draw(values) for name, values in options.items() if draw(st.integers(0, 3)) == 0}
    elements, blocks, scale = draw(st.sampled_from(list(FAMILIES.values())))
    element, block = draw(st.sampled_from(elements)), draw(st.sampled_from(blocks))
    if scale == "f8E4M3FN":
        chosen.setdefault("second_level", "tensor")
    try:
        return Scheme(element, block, scale, **chosen)
    except ConstraintError:
        assume(False)
        raise


@given(schemes())
def test_attribute_and_scheme_are_inverses(scheme):
    with CONTEXT:
        attribute = SchemeAttr.from_scheme(scheme)
        assert attribute.scheme == scheme
        parsed = ir.Attribute.parse(str(attribute))
        assert parsed == attribute
        assert SchemeAttr.from_scheme(parsed.scheme) == attribute


@given(st.lists(schemes(), min_size=1, max_size=4), st.text(max_size=20))
def test_text_with_names_and_bytecode_keep_the_module(chosen, note):
    with CONTEXT, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for scheme in chosen:
                attribute = SchemeAttr.from_scheme(scheme)
                decoy = ir.StringAttr.get(f"{note} {attribute} \\ {attribute}")
                ir.Operation.create("test.op", attributes={"scheme": attribute, "decoy": decoy})
        again = parse_module(print_module(module.operation), CONTEXT)
        assert str(again) == str(module)
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
        assert str(ir.Module.parse(buffer.getvalue())) == str(module)


def test_options_are_what_differs_from_the_defaults():
    scheme = Scheme("f4E2M1FN", "1x16", "f8E4M3FN", second_level="tensor", rht=True)
    assert scheme.options() == {"rht": True, "second_level": "tensor"}
    assert Scheme("f8E4M3FN", "tensor", "f32").options() == {}


@pytest.mark.parametrize(
    ("block", "family", "shape", "transposable"),
    [
        ("tensor", "tensor", None, True),
        ("1x128", "block", (1, 128), False),
        ("128x128", "block", (128, 128), True),
        ("1x32", "mx", (1, 32), False),
        ("32x1", "mx", (32, 1), False),
        ("32x32", "mx", (32, 32), True),
        ("1x16", "nvfp4", (1, 16), False),
        ("16x16", "nvfp4", (16, 16), True),
    ],
)
def test_what_follows_from_the_block(block, family, shape, transposable):
    element, scale = {
        "tensor": ("f8E5M2", "f32"),
        "block": ("f8E4M3FN", "f32"),
        "mx": ("f8E4M3FN", "f8E8M0FNU"),
        "nvfp4": ("f4E2M1FN", "f8E4M3FN"),
    }[family]
    scheme = Scheme(element, block, scale, second_level="tensor" if family == "nvfp4" else "none")
    assert (scheme.family, scheme.block_shape, scheme.is_transposable) == (family, shape, transposable)
    assert scheme.element_max == {"f8E5M2": 57344, "f8E4M3FN": 448, "f4E2M1FN": 6}[element]


def test_a_custom_scheme_is_not_checked_and_not_transposable():
    scheme = Scheme("i8", "1x64", "f32", custom="mine")
    assert scheme.family == "custom"
    assert not scheme.is_transposable
