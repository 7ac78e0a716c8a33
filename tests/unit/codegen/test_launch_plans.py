"""Plans in the IR: they are read as they were written, and one that cannot be read says why."""

import pytest
import torch
from torch import nn
from torch_mlir import ir

import steelyard
from steelyard.codegen.kernel_attributes import kernel_attribute, read_kernel
from steelyard.codegen.launches.calls import plan_call
from steelyard.codegen.launches.text import generated_kernels, read_plans
from steelyard.dialect import make_context, parse_module
from steelyard.errors import IRError
from steelyard.ir.kernel_calls import calls_of


class Model(nn.Module):
    """A norm, an activation and a residual, each of which becomes part of a kernel."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(40), nn.Linear(40, 72), nn.Linear(72, 40)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


@pytest.mark.every(3)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("recipe", "target"),
    [
        ("fp8-delayed", "sm_90a"),
        ("fp8-block", "sm_100a"),
        ("mxfp8", "sm_89"),
        ("mxfp8", "sm_100a"),
        ("nvfp4", "sm_90a"),
    ],
)
def test_what_is_written_is_what_is_read(recipe, target, dynamic):
    x = torch.randn(2, 12, 40)
    if dynamic:
        torch._dynamo.mark_dynamic(x, 1)
    net = steelyard.compile(Model(), recipe, target=f"cuda:{target}").lower(x)
    torch._dynamo.reset()
    module = parse_module(net.ir("lowered"), make_context())
    calls = calls_of(module.operation)
    planned = {symbol: plan_call(call) for symbol, call in calls.items() if call.device == "cuda"}
    found = read_plans(module.operation, calls)
    assert found == {symbol: plan for symbol, plan in planned.items() if plan is not None}
    launched = {kernel for plan in found.values() for kernel in plan.kernels}
    assert launched == set(generated_kernels(module.operation).values())
    with module.context:
        assert {read_kernel(kernel_attribute(kernel)) for kernel in launched} == launched


MODULE = """
func.func private @amax_0(!torch.vtensor<[?,64],f32>) -> !torch.vtensor<[],f32> attributes {scaled.config = {},
  scaled.device = "cuda", scaled.kernel = "amax", scaled.operands = ["source"], scaled.results = ["result"]}
module @amax_0_launches attributes {scaled.plan = @amax_0} {
  STEP
}
gpu.module @amax_f32 attributes {scaled.code = {kernel = "amax", source = {dtype = "f32"}}} {
}
"""
LAUNCH = "scaled.launch @amax_f32(%s) blocks(%s)"
ARGUMENTS = '"source", 64, "source[0]", 64, "out.result"'


def read(step: str):
    module = parse_module(MODULE.replace("STEP", step), make_context())
    return read_plans(module.operation, calls_of(module.operation))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (LAUNCH % ('"source"', "1"), "arguments of @amax_f32 must be input0, row_stride0, rows, columns, amax"),
        (LAUNCH % (ARGUMENTS.replace("out.result", "out.amax"), "1"), "'out.amax' must be a tensor or a size over"),
        (LAUNCH % (ARGUMENTS.replace("source[0]", "source[2]"), "1"), "'source' has 2 dims"),
        (LAUNCH % (ARGUMENTS, '"source[0] + source[0]"'), "added to constants"),
        (LAUNCH % (ARGUMENTS, '"source[0] // 0"'), "divided by //"),
        (LAUNCH % (ARGUMENTS, '"(("'), "must be a tensor or a size"),
        (LAUNCH % (ARGUMENTS, f'"{"(" * 400}1{")" * 400}"'), "must be a tensor or a size"),
        (LAUNCH % (ARGUMENTS, f'"{"-" * 900}1"'), "must be a tensor or a size"),
        (LAUNCH % (ARGUMENTS, f'"{"1 + " * 900}1"'), "more than 1000 characters"),
        (LAUNCH % (ARGUMENTS, '"__import__(1)"'), "is no size"),
        ((LAUNCH % (ARGUMENTS, "1")).replace("@amax_f32", "@amax_f16"), "must be a gpu.module with scaled.code"),
        ("scaled.allocate source() of f32", "or a new name, got 'source'"),
        ('scaled.torch_call zero("source[0]")', "must be a tensor"),
        ("%0 = torch.constant.int 3", "must be scaled.allocate, launch or torch_call in a plan"),
    ],
)
def test_steps_that_cannot_be_read_say_why(step, message):
    with pytest.raises((IRError, ir.MLIRError)) as caught:
        read(step)
    assert message in str(caught.value)


def test_a_step_that_can_be_read():
    (plan,) = read(LAUNCH % (ARGUMENTS, '"(source[0] + 63) // 64"')).values()
    assert [kernel.name for kernel in plan.kernels] == ["amax_f32"]


def test_a_layer_is_shown_with_its_launches():
    net = steelyard.compile(Model(), "mxfp8", target="cuda:sm_100a")
    with torch.no_grad():
        net.lower(torch.randn(24, 40))
    whole, layer = net.ir("lowered"), net.ir("lowered", layer="down")
    shown = [name for name in ("@quantize_0", "@produce_quantize_0", "@produce_quantize_1") if f"call {name}" in layer]
    assert shown == ["@produce_quantize_1"]
    assert "scaled.plan = @produce_quantize_1}" in layer
    assert "scaled.plan = @produce_quantize_0}" not in layer
    assert whole.count("scaled.plan = ") > layer.count("scaled.plan = ") > 0
