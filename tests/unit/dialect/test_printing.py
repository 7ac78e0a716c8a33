"""Modules as text."""

from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.dialect.printing import nest_modules

MX = '#scaled.scheme<f8E4M3FN, "1x32", f8E8M0FNU, {}>'
NVFP4 = '#scaled.scheme<f4E2M1FN, "1x16", f8E4M3FN, {second_level = "tensor"}>'


def module_text(alias: str, scheme: str) -> str:
    return f"""{alias} = {scheme}
module {{
  func.func @forward(%arg0: !scaled.tensor<tensor<4x32xf32>, {alias}, none>) attributes {{note = "{alias} module"}} {{
    return
  }}
}}
"""


def argument_types(nested: ir.Module) -> dict[str, str]:
    found = {}
    for module in nested.body.operations:
        (function,) = module.regions[0].blocks[0].operations
        found[module.sym_name.value] = str(function.arguments[0].type)
        assert ir.StringAttr(function.attributes["sym_name"]).value == "forward"
    return found


def test_modules_are_nested_by_name_and_share_aliases():
    texts = {"one": module_text("#mx", MX), "two": module_text("#mx", MX)}
    text = nest_modules(texts)
    assert text.count("#scaled.scheme") == 1
    types = argument_types(ir.Module.parse(text, make_context()))
    assert set(types) == {"one", "two"}
    assert all(MX in type_ for type_ in types.values())


def test_aliases_of_one_name_and_two_meanings_are_told_apart():
    text = nest_modules({"one": module_text("#a", MX), "two": module_text("#a", NVFP4), "three": module_text("#b", MX)})
    types = argument_types(ir.Module.parse(text, make_context()))
    assert [next(s for s in (MX, NVFP4) if s in types[name]) for name in ("one", "two", "three")] == [MX, NVFP4, MX]
    # What a string says is left alone.
    assert text.count('"#a module"') == 2
