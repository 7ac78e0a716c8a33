"""One layer's part of a module, and modules in one."""

import io

import pytest
from torch_mlir import ir

from steelyard.dialect import make_context, parse_module, print_module
from steelyard.errors import SteelyardError
from steelyard.ir.layers import lines_with_layers, print_layers
from steelyard.ir.nesting import graph_names, nest_modules

PROGRAM = """
func.func private @kernel(tensor<8x64xf32>) -> tensor<8x64xf32>
func.func private @other(tensor<8x64xf32>) -> tensor<8x64xf32>
func.func @forward(
    %x: tensor<8x64xf32>, %w: tensor<64x64xf32> {scaled.parameter = "a.weight"}, %v: tensor<64x64xf32>
) -> tensor<8x64xf32> {
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %list = torch.prim.ListConstruct %int1, %int2 : (!torch.int, !torch.int) -> !torch.list<int> loc("b"("m.py":1:1))
  %0 = scaled.matmul fprop %x, %w at "a" : tensor<8x64xf32>, tensor<64x64xf32> -> tensor<8x64xf32>
  "test.list"(%list, %0) : (!torch.list<int>, tensor<8x64xf32>) -> () loc("a"("m.py":2:1))
  %1 = call @kernel(%0) : (tensor<8x64xf32>) -> tensor<8x64xf32> loc("a"("m.py":3:1))
  %2 = call @other(%1) : (tensor<8x64xf32>) -> tensor<8x64xf32> loc("b.c"("m.py":4:1))
  %3 = scaled.matmul fprop %2, %v at "b.d" : tensor<8x64xf32>, tensor<64x64xf32> -> tensor<8x64xf32>
  return %3 : tensor<8x64xf32>
}
func.func @backward(%x: tensor<8x64xf32>) {
  scaled.free %x : tensor<8x64xf32>
  return
}
"""
LAYER_A = """module {
  func.func private @kernel(tensor<8x64xf32>) -> tensor<8x64xf32>
  // ...
  func.func @forward(
      %arg0: tensor<8x64xf32>,
      %arg1: tensor<64x64xf32> {scaled.parameter = "a.weight"},
      // ...
  ) { // ...
    %int1 = torch.constant.int 1
    %int2 = torch.constant.int 2
    %0 = torch.prim.ListConstruct %int1, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
    %1 = scaled.matmul fprop %arg0, %arg1 at "a" : tensor<8x64xf32>, tensor<64x64xf32> -> tensor<8x64xf32>
    "test.list"(%0, %1) : (!torch.list<int>, tensor<8x64xf32>) -> ()
    %2 = call @kernel(%1) : (tensor<8x64xf32>) -> tensor<8x64xf32>
    // ...
  }
  // ...
}
"""


@pytest.fixture
def program() -> ir.Module:
    context = make_context()
    context.allow_unregistered_dialects = True
    return parse_module(PROGRAM, context)


def test_a_layer_is_shown_with_what_it_reads(program):
    assert print_layers(program.operation, "a") == LAYER_A


def test_each_line_has_the_layer_of_its_op(program):
    lines = lines_with_layers(program.operation)
    assert [line for _, line in lines] == print_module(program.operation).splitlines()
    found = [(layer, line.split("=")[-1].split()[0]) for layer, line in lines if layer]
    assert found == [
        ("b", "torch.prim.ListConstruct"),
        ("a", "scaled.matmul"),
        ("a", '"test.list"(%0,'),
        ("a", "call"),
        ("b.c", "call"),
        ("b.d", "scaled.matmul"),
    ]


def test_a_pattern_takes_several_layers_and_keeps_their_order(program):
    shown = print_layers(program.operation, "b.*")
    assert "call @other" in shown
    assert shown.index("call @other") < shown.index('at "b.d"')
    assert 'at "a"' not in shown
    assert "@kernel" not in shown
    # Constants that others read are not theirs.
    assert "torch.constant" not in shown
    assert "@backward" not in shown


def test_an_unknown_layer_names_those_there_are(program):
    with pytest.raises(SteelyardError, match=r"no layer of this stage matches 'c\*'; the layers are: a, b, b.c, b.d"):
        print_layers(program.operation, "c*")


def test_what_a_layer_reads_is_looked_for_in_its_own_module():
    context = make_context()
    context.allow_unregistered_dialects = True
    first = parse_module(PROGRAM, context)
    second = parse_module(PROGRAM.replace('"a"', '"z"'), context)
    shown = print_layers(nest_modules({"x": first, "y": second}, context).operation, "a")
    assert "module @x" in shown
    assert shown.count("@kernel(tensor") == 1
    assert "module @y" not in shown


def test_modules_are_nested_by_number_and_shown_by_layer(program):
    buffer = io.BytesIO()
    program.operation.write_bytecode(buffer)
    context = make_context()
    context.allow_unregistered_dialects = True
    modules = [ir.Module.parse(buffer.getvalue(), context) for _ in range(2)]
    nested = nest_modules(dict(zip(graph_names(), modules, strict=False)), context)
    text = print_module(nested.operation)
    assert [line.strip() for line in text.splitlines() if "module" in line] == [
        "module {",
        "module @graph0 {",
        "module @graph1 {",
    ]
    assert text.count('at "b.d"') == 2
    assert print_layers(nested.operation, "a").count('at "a"') == 2
    alone = nest_modules({"graph0": modules[0]}, context)
    assert print_module(alone.operation) == print_module(program.operation)
    called = print_module(nest_modules({"graph0": modules[0]}, context, [("graph0", "x"), ("graph0", "y")]).operation)
    assert called.splitlines()[-3:] == ['  scaled.call_block @graph0 at "x"', '  scaled.call_block @graph0 at "y"', "}"]
    # An excerpt leaves the calls out.
    assert print_layers(parse_module(called, context).operation, "a").count('at "a"') == 1
