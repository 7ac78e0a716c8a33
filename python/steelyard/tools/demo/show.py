"""What the demo prints."""

import re
from importlib.resources import files

from torch_mlir import ir

from steelyard.dialect import make_context
from steelyard.dialect.matmul import GemmOp, MatmulOp
from steelyard.dialect.printing import print_module
from steelyard.dialect.quantize import QuantizeOp
from steelyard.passes import build_pass_manager, parse_pipeline

RECIPES = ("fp8-current", "fp8-block", "mxfp8", "nvfp4")

_OPERAND_TYPES = re.compile(r" : \(?.*\)? -> ")
# What generic syntax needs and a first look does not.
_NOISE = re.compile(
    r'(?:batch_dims = 0 : i64|epilogue = "none"|layer = ""|\w+SegmentSizes = array<i32: [\d, ]+>)(?:, )?'
)


def run(recipe: str = "mxfp8") -> int:
    """Show the sample before and after a recipe, then count what each recipe makes of it."""
    text = (files("steelyard.tools.demo") / "mlp.mlir").read_text()
    print("The MLP of a Llama-style model; its GEMMs are found and named, no recipe has touched them yet:\n")
    print(_gist(print_module(ir.Module.parse(text, make_context()).operation)))
    print(f"\nAfter steelyard-opt -p 'steelyard-quantized{{recipe={recipe}}}':\n")
    print(_gist(print_module(_quantized(text, recipe).operation)))
    print("\nEvery recipe quantizes x once, although two GEMMs read it:\n")
    for row in _count_rows(text):
        print("  " + "".join(f"{cell:<{width}}" for cell, width in zip(row, (14, 8, 11, 40), strict=True)).rstrip())
    print("\nOperand types are left out here; steelyard-opt prints everything (steelyard-opt --help).")
    return 0


def _quantized(text: str, recipe: str) -> ir.Module:
    context = make_context()
    module = ir.Module.parse(text, context)
    elements = parse_pipeline(f"steelyard-quantized{{recipe={recipe}}}")
    build_pass_manager(elements, context).run(module.operation)
    return module


def _count_rows(text: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("recipe", "GEMMs", "quantizes", "formats of input x weight")]
    for recipe in RECIPES:
        module = _quantized(text, recipe)
        gemms, quantizes = (ir.get_ops_of_type(module, kind) for kind in (GemmOp, QuantizeOp))
        left = len(ir.get_ops_of_type(module, MatmulOp))
        assert left == 0, f"{left} GEMMs stayed in high precision"
        schemes = [operand.type.info.schemes[0] for operand in (gemms[0].lhs, gemms[0].rhs)]
        formats = " x ".join(f"{scheme.element} in {scheme.block}" for scheme in schemes)
        rows.append((recipe, str(len(gemms)), str(len(quantizes)), formats))
    return rows


def _gist(text: str) -> str:
    """The schemes and the ops of a module, without operand types and what generic syntax adds."""
    lines = [line.strip() for line in text.splitlines()]
    schemes = [line for line in lines if line.startswith("#")]
    ops = [_OPERAND_TYPES.sub(" -> ", _NOISE.sub("", line)) for line in lines if line.startswith("%")]
    return "\n".join(f"  {line}" for line in [*schemes, *(op.replace(", }", "}") for op in ops)])
