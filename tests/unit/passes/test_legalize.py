"""After `scaled-legalize` for CUDA: calls that torch accepts, and matching rows of `explain()`."""

import functools

import pytest
import torch
from torch.nn.functional import ScalingType, SwizzleType, scaled_mm
from torch_mlir import ir
from torch_rules import check_call

import steelyard
from steelyard.dialect import make_context, parse_module
from steelyard.dialect.matmul import GemmOp
from steelyard.dialect.types import tensor_info
from steelyard.driver.explanation import Explanation, rows_of
from steelyard.ir.kernel_calls import GemmCall, callee_of, calls_of
from steelyard.ir.torch_ops import walk_ops
from steelyard.passes import build_pass_manager, parse_pipeline
from steelyard.recipes import NAMES, Float8BlockScaling, MXFP8BlockScaling, Recipe
from steelyard.targets import TARGETS

CUDA = [target for target in TARGETS if target != "cpu"]
HYBRID = (MXFP8BlockScaling(fp8_format="HYBRID"), Float8BlockScaling(fp8_format="HYBRID"))
FITTING, ODD = (256, 128, 384), (50, 72, 40)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "ui8": torch.uint8}
ELEMENTS = {"f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2, "f4E2M1FN": torch.float4_e2m1fn_x2}


class Layers(torch.nn.Module):
    """Every kind of GEMM, with a bias alone, an activation, and a residual."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.up = torch.nn.Linear(inputs, hidden)
        self.middle = torch.nn.Linear(hidden, hidden)
        self.down = torch.nn.Linear(hidden, inputs)

    def forward(self, x):
        return x + self.down(torch.relu(self.middle(self.up(x))))


@functools.cache
def trained(recipe: str | Recipe, sizes: tuple[int, int, int]) -> tuple[str, str]:
    """The IR of a step before and after it is partitioned."""
    tokens, inputs, hidden = sizes
    # Otherwise torch would treat sizes that differ from the last ones as dynamic.
    torch.compiler.reset()
    net = steelyard.compile(Layers(inputs, hidden).bfloat16(), recipe)
    net(torch.randn(tokens, inputs, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    return net.ir("fused"), net.ir("partitioned")


def after(text: str, pipeline: str) -> ir.Module:
    module = parse_module(text, make_context())
    build_pass_manager(parse_pipeline(pipeline), module.context).run(module.operation)
    return module


def runs_natively(recipe: str | Recipe, kind: str, target: str) -> bool:
    """Whether torch has this product on NVIDIA's GPUs."""
    name = recipe if isinstance(recipe, str) else recipe.name
    if name.startswith("fp8-") and name != "fp8-block":
        return True
    if name == "mxfp4" or (recipe in HYBRID and kind != "fprop"):
        return False
    return target == "cuda:sm_90a" if name == "fp8-block" else target.startswith(("cuda:sm_10", "cuda:sm_12"))


def on_meta(value: ir.Value) -> torch.Tensor:
    info = tensor_info(value.type)
    return torch.empty(info.shape, dtype=DTYPES[info.dtype], device="meta")


def scales_of(scheme, parts: dict[str, torch.Tensor]) -> tuple[list, list, list | None]:
    """Scales as torch takes them, with their kinds and layouts."""
    scales = parts["scales"]
    if scheme.family == "tensor":
        return [scales], [ScalingType.TensorWise], None
    if scheme.family == "row":
        return [scales], [ScalingType.RowWise], None
    if scheme.family == "block":
        tiles = scheme.block == "128x128"
        return [scales.t()], [ScalingType.BlockWise128x128 if tiles else ScalingType.BlockWise1x128], None
    if scheme.family == "mx":
        return [scales.view(torch.float8_e8m0fnu)], [ScalingType.BlockWise1x32], [SwizzleType.SWIZZLE_32_4_4]
    levels = [ScalingType.BlockWise1x16, ScalingType.TensorWise]
    swizzles = [SwizzleType.SWIZZLE_32_4_4, SwizzleType.NO_SWIZZLE]
    return [scales.view(torch.float8_e4m3fn), parts["amax"]], levels, swizzles


def multiply_on_meta(op: ir.Operation, call: GemmCall) -> torch.Tensor:
    """The torch call of a lowered GEMM."""
    given = {slot.name: on_meta(value) for slot, value in zip(call.operands, op.operands, strict=True)}
    matrices, scales = [], []
    for side, scheme in (("lhs", call.lhs), ("rhs", call.rhs)):
        parts = {name.removeprefix(f"{side}."): part for name, part in given.items() if name.startswith(side)}
        matrices.append(parts["codes"].view(ELEMENTS[scheme.element]))
        scales.append(scales_of(scheme, parts))
    (scales_a, kinds_a, swizzle_a), (scales_b, kinds_b, swizzle_b) = scales
    info = tensor_info(op.result.type)
    options = {"swizzle_a": swizzle_a, "swizzle_b": swizzle_b, "bias": given.get("bias")}
    options["output_dtype"] = DTYPES[info.dtype]
    if kinds_a == kinds_b == [ScalingType.RowWise]:
        scales_b = [scales_b[0].t()]
        if info.dtype != "bf16" or call.lhs.element != "f8E4M3FN":
            # Scales of rows follow a product of the codes, which has float32 sums.
            kinds_a = kinds_b = [ScalingType.TensorWise]
            scales_a = scales_b = [torch.empty((), device="meta")]
            options |= {"bias": None, "output_dtype": torch.float32}
    arguments = (matrices[0], matrices[1].t(), scales_a, kinds_a, scales_b, kinds_b)
    check_call(*arguments, **options)
    return scaled_mm(*arguments, **options)


@pytest.mark.every(12)
@pytest.mark.parametrize("sizes", [FITTING, ODD], ids=["fitting", "odd"])
@pytest.mark.parametrize("recipe", [*NAMES, *HYBRID], ids=str)
def test_native_gemms_are_calls_that_torch_takes(recipe, sizes):
    for target in CUDA:
        module = after(trained(recipe, sizes)[1], f"steelyard-lowered{{target={target}}}")
        declared = calls_of(module.operation)
        calls = [(op, declared[symbol]) for op in walk_ops(module.operation) if (symbol := callee_of(op))]
        gemms = [(op, call) for op, call in calls if isinstance(call, GemmCall)]
        assert len(gemms) == 9
        for op, call in gemms:
            assert call.device == "cuda"
            assert not call.batch_dims
            assert (call.path == "native") == runs_natively(recipe, call.kind, target)
            if call.path != "native":
                continue
            result, info = multiply_on_meta(op, call), tensor_info(op.result.type)
            assert tuple(result.shape) == info.shape
            assert call.residual is None
            assert call.epilogue == "none"


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", NAMES)
def test_sizes_that_fit_are_neither_padded_nor_cut(recipe):
    for target in CUDA:
        module = after(trained(recipe, FITTING)[1], f"scaled-legalize{{target={target}}}")
        names = {op.name for op in walk_ops(module.operation)}
        assert not names & {"scaled.pad", "scaled.unpad", "scaled.flatten"}


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", NAMES)
def test_steps_convert_no_weights(recipe):
    """Only GEMMs read the operands that are weights."""
    for target in CUDA:
        module = after(trained(recipe, ODD)[1], f"scaled-legalize{{target={target}}}")
        for function in module.body.operations:
            attributes = function.attributes
            known = ir.ArrayAttr(attributes["arg_attrs"]) if "arg_attrs" in attributes else []
            for argument, own in zip(function.regions[0].blocks[0].arguments, known, strict=True):
                if "scaled.weight" in own and str(argument.type).startswith("!scaled.tensor"):
                    assert all(isinstance(use.owner.opview, GemmOp) for use in argument.uses)


@pytest.mark.every(3)
@pytest.mark.parametrize("sizes", [FITTING, ODD], ids=["fitting", "odd"])
@pytest.mark.parametrize("recipe", NAMES)
def test_rows_say_what_the_ir_says(recipe, sizes):
    fused, partitioned = trained(recipe, sizes)
    for target in CUDA:
        rows = rows_of(parse_module(fused, make_context()), target)
        module = after(partitioned, f"scaled-legalize{{target={target}}}")
        gemms = [op for op in walk_ops(module.operation) if isinstance(op.opview, GemmOp)]
        found = {(op.opview.layer.value, op.opview.kind.value): op for op in gemms}
        assert len(rows) == len(found) == 9
        for row in rows:
            op = found[row.layer, row.kind]
            native = ir.StringAttr(op.attributes["scaled.path"]).value == "native"
            decoded = "f32" if recipe == "fp8-block" else "bf16"
            assert row.kernel.endswith("scaled_mm" if native else f"emulated in {decoded}")
            assert row.reason == ("" if native else ir.StringAttr(op.attributes["scaled.reason"]).value)
            readers = {use.owner.operation.name for use in op.result.uses}
            readers |= {use.owner.operation.name for use in _unpadded(op).uses}
            assert ("scaled.epilogue" in readers) == row.epilogue.endswith("(own kernel)")
            rows_of_result, columns = tensor_info(op.result.type).shape
            assert (f"M {row.M} to {rows_of_result}" in row.padding) == (int(row.M) != rows_of_result)
            assert (f"N {row.N} to {columns}" in row.padding) == (int(row.N) != columns)


def _unpadded(op: ir.Operation) -> ir.Value:
    for use in op.result.uses:
        if use.owner.operation.name == "scaled.unpad":
            return use.owner.operation.result
    return op.result


def test_explanation_of_padded_and_emulated_gemms():
    fused, _ = trained("mxfp8", ODD)
    blackwell = Explanation(rows_of(parse_module(fused, make_context()), "cuda:sm_100a"))
    rows = {(row.layer, row.kind): row for row in blackwell.rows}
    assert rows["up", "fprop"].padding == "N 40 to 48, K 72 to 96"
    assert rows["up", "fprop"].epilogue == "bias (own kernel)"
    assert rows["down", "fprop"].epilogue == "bias, residual (own kernel)"
    assert rows["up", "wgrad"].padding == "N 72 to 80, K 50 to 64"
    assert "\n9 GEMMs quantized, 0 left in high precision" in blackwell
    ada = Explanation(rows_of(parse_module(fused, make_context()), "cuda:sm_89"))
    assert {row.reason for row in ada.rows} == {"tensor cores read MX scales from sm_100 on"}
    assert {row.padding for row in ada.rows} == {""}
    assert "\n9 GEMMs quantized, 9 of them emulated, 0 left in high precision" in ada
