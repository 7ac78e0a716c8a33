"""Native CUDA GEMMs after every conversion in the IR: run by the reference, they give the product of the original
operands."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch_mlir import ir

from steelyard import reference
from steelyard.dialect import make_context
from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.types import tensor_info
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import part_shapes
from steelyard.ir.kernel_calls import callee_of, calls_of
from steelyard.passes import build_pass_manager, parse_pipeline
from steelyard.recipes import (
    Float8BlockScaling,
    Float8CurrentScaling,
    Float8RowScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from steelyard.reference.gemm import EPILOGUES, operand

RECIPES = {
    "cuda:sm_89": Float8CurrentScaling(),
    "cuda:sm_90a": Float8BlockScaling(),
    "cuda:sm_100a": MXFP8BlockScaling(),
    "cuda:sm_103a": Float8RowScaling(),
    "cuda:sm_120a": NVFP4BlockScaling(stochastic_rounding=False),
}
ROLES = {"fprop": ("input", "weight"), "dgrad": ("grad_output", "weight"), "wgrad": ("grad_output", "input")}
COLUMNWISE = {"fprop": (False, False), "dgrad": (False, True), "wgrad": (True, True)}
SIZES = {"odd": (50, 72, 40), "fitting": (48, 128, 256)}
"""Rows, columns and the reduction."""
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# The product was rounded to f32, and then once more to the result's dtype.
TOLERANCES = {"f32": 1e-6, "bf16": 2.0**-7}


def matrices(kind: str, sizes) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands in their memory layout: a columnwise copy is read along the first dim."""
    generator = torch.Generator().manual_seed(len(kind))
    rows, columns, reduction = sizes
    shapes = [(rows, reduction), (columns, reduction)]
    shapes = [s[::-1] if columnwise else s for s, columnwise in zip(shapes, COLUMNWISE[kind], strict=True)]
    return torch.randn(shapes[0], generator=generator), torch.randn(shapes[1], generator=generator)


def schemes_of(recipe, kind: str) -> list:
    pairs = zip(ROLES[kind], COLUMNWISE[kind], strict=True)
    return [recipe.schemes(role)[columnwise] for role, columnwise in pairs]


def lowered(
    kind: str, schemes, shapes, sizes, target: str, dtype: str, epilogue: str, extra: tuple[str, ...]
) -> ir.Module:
    """A function with one GEMM, which quantizes its operands."""
    rows, columns, _ = sizes
    context = make_context()
    with context:
        texts = [str(SchemeAttr.from_scheme(scheme)) for scheme in schemes]
    plain = [f"!torch.vtensor<[{','.join(map(str, shape))}],f32>" for shape in shapes]
    scaled = []
    for text, shape, columnwise in zip(texts, shapes, COLUMNWISE[kind], strict=True):
        copies = f"none, {text}" if columnwise else f"{text}, none"
        scaled.append(f"!scaled.tensor<tensor<{'x'.join(map(str, shape))}xf32>, {copies}>")
    result = f"!torch.vtensor<[{rows},{columns}],{dtype}>"
    types = {"bias": f"!torch.vtensor<[{columns}],{dtype}>", "residual": result}
    arguments = {"a": plain[0], "b": plain[1]} | {name: types[name] for name in extra}
    segments = ", ".join(["1, 1", *(str(int(name in extra)) for name in types)])
    quantize = 'layer = "", operandSegmentSizes = array<i32: 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0>'
    text = f"""
    func.func @f({", ".join(f"%{name}: {type_}" for name, type_ in arguments.items())}) -> {result} {{
      %l = "scaled.quantize"(%a) {{{quantize}, role = "{ROLES[kind][0]}"}} : ({plain[0]}) -> {scaled[0]}
      %r = "scaled.quantize"(%b) {{{quantize}, role = "{ROLES[kind][1]}"}} : ({plain[1]}) -> {scaled[1]}
      %y = "scaled.gemm"({", ".join(["%l", "%r", *(f"%{name}" for name in extra)])}) {{batch_dims = 0 : i64,
        epilogue = "{epilogue}", kind = "{kind}", layer = "up", operandSegmentSizes = array<i32: {segments}>,
        resultSegmentSizes = array<i32: 1, 0>}} : ({", ".join([*scaled, *(types[n] for n in extra)])}) -> {result}
      return %y : {result}
    }}"""
    module = ir.Module.parse(text, context)
    pipeline = f"scaled-legalize{{target={target}}},scaled-lower-storage"
    build_pass_manager(parse_pipeline(pipeline), context).run(module.operation)
    return module


class Machine:
    """Runs kernel calls by the reference."""

    def run(self, module: ir.Module, arguments: list[torch.Tensor]) -> torch.Tensor:
        calls = calls_of(module.operation)
        (function,) = [op for op in module.body.operations if "scaled.kernel" not in op.attributes]
        block = function.regions[0].blocks[0]
        values = dict(zip(block.arguments, arguments, strict=True))
        for op in block.operations:
            if op.operation.name == "func.return":
                return values[op.operands[0]]
            call = calls[callee_of(op.operation)]
            names = [slot.name for slot in call.operands]
            given = dict(zip(names, (values[value] for value in op.operands), strict=True))
            self.shapes = [tensor_info(value.type).shape for value in op.results]
            self.dtypes = [DTYPES.get(tensor_info(value.type).dtype) for value in op.results]
            results = getattr(self, call.OPERATION)(call, given)
            for value, shape, result in zip(op.results, self.shapes, results, strict=True):
                assert tuple(result.shape) == shape
                values[value] = result
        raise AssertionError("a function returns")

    def quantize(self, call, given):
        copies = reference.quantize(given["source"], call.row, call.col)
        parts = [part for copy in copies if copy for part in (copy.codes, copy.scales, copy.amax)]
        return [part for part in parts if part is not None]

    def pad(self, _, given):
        return [self.filled(part, shape) for part, shape in zip(given.values(), self.shapes, strict=True)]

    @staticmethod
    def filled(part: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        whole = torch.zeros(shape, dtype=part.dtype)
        whole[tuple(slice(0, size) for size in part.shape)] = part
        return whole

    def turn(self, _, given):
        return [given["col.codes"].t().contiguous()]

    def swizzle(self, call, given):
        usage = "col" if call.columnwise else "row"
        return [reference.swizzle(self.scales_alone(call.scheme, given[f"{usage}.scales"], call.columnwise))]

    @staticmethod
    def scales_alone(scheme, scales: torch.Tensor, columnwise: bool) -> QuantizedCopy:
        return QuantizedCopy(torch.empty(0), scales, None, replace(scheme, layout="compact"), (0, 0), columnwise)

    def gemm(self, call, given):
        assert call.path == "native"
        assert call.epilogue == "none"
        left = self.decoded(call.lhs, call.lhs_shape, COLUMNWISE[call.kind][0], given, "lhs")
        right = self.decoded(call.rhs, call.rhs_shape, COLUMNWISE[call.kind][1], given, "rhs")
        found = torch.from_numpy(left @ right.T)
        if "bias" in given:
            found = found + given["bias"].double()
        return [found.float().to(self.dtypes[0])]

    def decoded(self, scheme, shape, columnwise: bool, given, side: str):
        """The values of an operand as a native GEMM reads them."""
        codes, scales = given[f"{side}.codes"], given[f"{side}.scales"]
        compact = replace(scheme, layout="compact")
        if scheme.has_blocks:
            assert scheme.layout == "gemm"
            scales = self.unswizzled(compact, scales, shape, columnwise)
        if scheme.family == "mx" and columnwise:
            codes = codes.t().contiguous()
        return operand(QuantizedCopy(codes, scales, given.get(f"{side}.amax"), compact, shape, columnwise))

    def unswizzled(self, scheme, scales: torch.Tensor, shape, columnwise: bool) -> torch.Tensor:
        """Compact scales, from the place that the swizzle moves each of them to."""
        wanted = part_shapes(scheme, shape, columnwise)["scales"][0]
        numbers = torch.arange(1, wanted[0] * wanted[1] + 1).view(wanted)
        places = reference.swizzle(self.scales_alone(scheme, numbers, columnwise)).flatten()
        compact = torch.zeros(numbers.numel() + 1, dtype=scales.dtype)
        compact[places] = scales.flatten()
        return compact[1:].view(wanted)

    def unpad(self, _, given):
        (shape,) = self.shapes
        return [given["source"][tuple(slice(0, size) for size in shape)]]

    def epilogue(self, call, given):
        found = given["source"].double()
        found = found + given["bias"].double() if "bias" in given else found
        found = EPILOGUES[call.epilogue](found)
        found = found + given["residual"].double() if "residual" in given else found
        return [found.float().to(self.dtypes[0])]


CASES = [
    *product(ROLES, [("none", ()), ("relu", ("residual",))]),
    *product(["fprop"], [("none", ("bias",)), ("gelu", ("bias", "residual"))]),
]


@pytest.mark.every(3)
@pytest.mark.parametrize(("kind", "after"), CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("target", RECIPES)
def test_conversions_keep_the_product(target, sizes, kind, dtype, after):
    epilogue, extra = after
    a, b = matrices(kind, sizes)
    schemes = schemes_of(RECIPES[target], kind)
    given = {name: torch.linspace(-1, 1, sizes[1]) for name in extra}
    given |= {name: torch.linspace(-1, 1, sizes[1]).repeat(sizes[0], 1) for name in extra if name != "bias"}
    given = {name: value.to(DTYPES[dtype]) for name, value in given.items()}
    module = lowered(kind, schemes, (a.shape, b.shape), sizes, target, dtype, epilogue, extra)
    found = Machine().run(module, [a, b, *given.values()])
    copies = []
    for x, scheme, columnwise in zip((a, b), schemes, COLUMNWISE[kind], strict=True):
        pair = (None, scheme) if columnwise else (scheme, None)
        copies.append(reference.quantize(x, *pair)[columnwise])
    expected = reference.qgemm(*copies, epilogue=epilogue, out_dtype=DTYPES[dtype], **given)
    scale = expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype] * scale)
