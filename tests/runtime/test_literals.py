"""Tensors that the IR spells out are constants of the program, and each call gets its own."""

import pytest
import torch
from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.errors import UnsupportedOpError
from steelyard.ir.functions import functions_of
from steelyard.runtime.emitter import Emitter

LITERALS = [
    ("dense<[1.0, 2.5]> : tensor<2xf32>", "[2],f32", torch.tensor([1.0, 2.5])),
    ("dense<[[1.0], [2.5]]> : tensor<2x1xf64>", "[2,1],f64", torch.tensor([[1.0], [2.5]], dtype=torch.float64)),
    ("dense<[1.0, 2.5]> : tensor<2xf16>", "[2],f16", torch.tensor([1.0, 2.5], dtype=torch.float16)),
    ("dense<2.5> : tensor<2x2xbf16>", "[2,2],bf16", torch.full((2, 2), 2.5, dtype=torch.bfloat16)),
    ("dense<[-1, 200]> : tensor<2xsi64>", "[2],si64", torch.tensor([-1, 200])),
    ("dense<7> : tensor<si32>", "[],si32", torch.tensor(7, dtype=torch.int32)),
    ("dense<[1, 2]> : tensor<2xsi16>", "[2],si16", torch.tensor([1, 2], dtype=torch.int16)),
    ("dense<[-1, 2]> : tensor<2xsi8>", "[2],si8", torch.tensor([-1, 2], dtype=torch.int8)),
    ("dense<[1, 255]> : tensor<2xui8>", "[2],ui8", torch.tensor([1, 255], dtype=torch.uint8)),
    ("dense<[true, false]> : tensor<2xi1>", "[2],i1", torch.tensor([True, False])),
    ("dense<true> : tensor<3xi1>", "[3],i1", torch.ones(3, dtype=torch.bool)),
    ("dense<> : tensor<0xf32>", "[0],f32", torch.empty(0)),
]


def emit(literal: str, type_: str):
    text = f"""func.func @forward() -> !torch.vtensor<{type_}> {{
      %0 = torch.vtensor.literal({literal}) : !torch.vtensor<{type_}> loc("head"("model.py":7:0))
      return %0 : !torch.vtensor<{type_}>
    }}"""
    module = ir.Module.parse(text, make_context())
    return Emitter(module.operation, {}).emit(functions_of(module.operation)[0]).run


@pytest.mark.parametrize(("literal", "type_", "expected"), LITERALS, ids=[type_ for _, type_, _ in LITERALS])
def test_literal(literal, type_, expected):
    (found,) = emit(literal, type_)()
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_a_caller_may_write_into_it():
    run = emit(*LITERALS[0][:2])
    run()[0].zero_()
    assert torch.equal(run()[0], LITERALS[0][2])


@pytest.mark.parametrize(
    "literal", ["dense<[1.0, 2.0]> : tensor<2xbf16>", "dense_resource<somewhere> : tensor<2xbf16>"]
)
def test_elements_that_cannot_be_read(literal):
    with pytest.raises(UnsupportedOpError, match=r"layer 'head' at model.py:7: torch.vtensor.literal") as error:
        emit(literal, "[2],bf16")
    assert (error.value.layer, error.value.source) == ("head", "model.py:7")
