"""Products of experts against the reference, which quantizes the rows of each expert and each weight by itself."""

import pytest
import torch
from expert_models import EXPERTS, IN, OUT, Model

import steelyard
from steelyard import recipes, reference
from steelyard.reference.grouped import groups_of

ROWS = 24
ENDS = torch.tensor([5, 5, 18, 21], dtype=torch.int32)
"""An expert without rows, and three rows of no expert."""
RECIPES = [*recipes.NAMES, "nvfp4/none", "mxfp4/mxfp8"]


class Expected:
    """The three products of a recipe."""

    def __init__(self, recipe, x, weight, dy):
        self._recipe = recipes.get(recipe)
        self._rng = torch.initial_seed(), 0
        self._values = {"input": x, "weight": weight, "grad_output": dy}
        self._copies = {role: self._quantized(role) for role in self._values}

    def _quantized(self, role):
        schemes = self._recipe.schemes(role)
        if schemes == (None, None):
            return None
        ends = None if role == "weight" else ENDS
        # Delayed scales begin at 1.
        return reference.grouped_quantize(self._values[role], ends, *schemes, scale=self._scale(schemes), rng=self._rng)

    def _scale(self, schemes):
        return torch.ones(()) if any(scheme.source == "delayed" for scheme in schemes) else None

    def product(self, kind):
        left, right = {"fprop": ("input", "weight"), "dgrad": ("grad_output", "weight")}.get(
            kind, ("grad_output", "input")
        )
        columnwise = {"fprop": (0, 0), "dgrad": (0, 1), "wgrad": (1, 1)}[kind]
        rows = None if kind == "wgrad" else ROWS
        if self._copies[left] is not None and self._copies[right] is not None:
            copies = (self._copies[role][usage] for role, usage in zip((left, right), columnwise, strict=True))
            return reference.grouped_qgemm(*copies, rows=rows)
        if kind == "wgrad":
            groups = (groups_of(self._values[role].double(), ENDS) for role in (left, right))
            return torch.stack([dy.T @ x for dy, x in zip(*groups, strict=True)]).float()
        weights = [reference.dequantize(copy).double() for copy in self._copies["weight"][columnwise[1]]]
        groups = groups_of(self._values[left].double(), ENDS)
        made = [rows @ (w.T if kind == "fprop" else w) for rows, w in zip(groups, weights, strict=True)]
        return torch.cat([*made, made[0].new_zeros(ROWS - ENDS[-1], made[0].shape[1])]).float()


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_step_computes_the_three_products_of_each_expert(recipe):
    torch.manual_seed(3)
    model = Model(is_transposed=recipe in ("nvfp4", "fp8-block"))
    net = steelyard.compile(model, recipe)
    x, dy = torch.randn(ROWS, IN, requires_grad=True), torch.randn(ROWS, OUT)
    y = net(x, ENDS)
    y.backward(dy)
    weight, gradient = (
        tensor.transpose(1, 2) if model.experts.is_transposed else tensor
        for tensor in (model.experts.weight.detach(), model.experts.weight.grad)
    )
    expected = Expected(recipe, x.detach(), weight, dy)
    assert_close(y.detach(), expected.product("fprop"))
    assert_close(x.grad, expected.product("dgrad"))
    assert_close(gradient, expected.product("wgrad"))
    assert not gradient[1].any()
    assert not y[21:].any()


def test_rows():
    net = steelyard.compile(Model(dtype=torch.bfloat16), "mxfp8")
    net(torch.randn(ROWS, IN, dtype=torch.bfloat16, requires_grad=True), ENDS).sum().backward()
    found = [(row.layer, row.kind, row.M, row.N, row.K, row.kernel, row.flops) for row in net.explain().rows]
    kernel, flops = "cpu mx gemm of 4 experts", 2 * ROWS * OUT * IN
    assert found == [
        ("experts.weight", "fprop", "24", "40", "48", kernel, flops),
        ("experts.weight", "wgrad", "40", "48", "24", kernel, flops),
        ("experts.weight", "dgrad", "24", "48", "40", kernel, flops),
    ]
    assert net.explain().shares.quantized_weight_bytes == EXPERTS * OUT * IN * 2


@torch.no_grad()
def test_rows_may_change_in_number_and_weights_in_value():
    model = Model().eval()
    net = steelyard.compile(model, "fp8-current")
    for rows, ends in ((24, [5, 5, 18, 21]), (7, [0, 7, 7, 7]), (33, [8, 16, 32, 33]), (0, [0, 0, 0, 0])):
        model.experts.weight.mul_(3)
        x, ends = torch.randn(rows, IN), torch.tensor(ends, dtype=torch.int32)
        row, _ = recipes.get("fp8-current").schemes("input")
        copies = [
            reference.grouped_quantize(source, of, row, None)[0]
            for source, of in ((x, ends), (model.experts.weight, None))
        ]
        assert_close(net(x, ends), reference.grouped_qgemm(*copies, rows=rows)) if rows else net(x, ends)


@pytest.mark.parametrize(
    ("overrides", "is_quantized"),
    [({"experts": None}, False), ({"experts.weight": None}, False), ({"experts": "mxfp8", "*": None}, True)],
)
@torch.no_grad()
def test_overrides_name_the_weight_or_its_module(overrides, is_quantized):
    model = Model().eval()
    net = steelyard.compile(model, "nvfp4", overrides=overrides)
    x = torch.randn(ROWS, IN)
    y, exact = net(x, ENDS), model(x, ENDS)
    (row,) = net.explain().rows
    assert row.is_quantized == is_quantized
    assert torch.equal(y, exact) == (not is_quantized)


@torch.no_grad()
def test_what_a_static_scale_saturates_is_counted_in_rows_of_experts():
    recipe = recipes.Float8CurrentScaling(input_scales={"*": 0.004})
    net = steelyard.compile(Model().eval(), recipe)
    x = torch.randn(ROWS, IN, generator=torch.Generator().manual_seed(0))
    saturated = (x.double() / 0.004).abs() > 448
    assert saturated[ENDS[-1] :].any()
    net(x, ENDS)
    assert net.state_dict()["_steelyard.experts.weight.input.saturated"] == saturated[: ENDS[-1]].sum()


NARROW = "torch's product of groups in MXFP8 reduces over multiples of 32"
ONE_BY_ONE = "the host reads where groups end and multiplies one by one"


@pytest.mark.parametrize(
    ("recipe", "target", "dtype", "kernel", "reason"),
    [
        ("fp8-current", "sm_90a", torch.bfloat16, "cuda tensor scaled_grouped_mm of 4 experts", ""),
        ("mxfp8", "sm_100a", torch.bfloat16, "cuda mx emulated in bf16 of 4 experts", NARROW),
        (
            "mxfp8",
            "sm_100a",
            torch.float32,
            "cuda mx emulated in bf16 of 4 experts",
            f"torch's product of groups in MXFP8 has results in bf16 only; {ONE_BY_ONE}",
        ),
        (
            "nvfp4",
            "sm_120a",
            torch.bfloat16,
            "cuda nvfp4 emulated in bf16 of 4 experts",
            f"torch has products of groups in NVFP4 on sm_100 only; {ONE_BY_ONE}",
        ),
        (
            "fp8-row",
            "sm_90a",
            torch.float32,
            "cuda row emulated in bf16 of 4 experts",
            f"torch's product of groups in FP8 has results in bf16 only; {ONE_BY_ONE}",
        ),
    ],
)
@torch.no_grad()
def test_rows_on_cuda(recipe, target, dtype, kernel, reason):
    net = steelyard.compile(Model(dtype=dtype, width=OUT + 8).eval(), recipe, target=f"cuda:{target}")
    (row,) = net.lower(torch.randn(ROWS, IN).to(dtype), ENDS).explain().rows
    assert (row.kernel, row.reason, row.is_quantized) == (kernel, reason, True)
