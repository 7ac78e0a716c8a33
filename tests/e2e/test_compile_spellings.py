"""GEMMs are found in all spellings, and so are their parameters, even as parts of larger ones."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import steelyard
from steelyard import recipes, reference


def decoded(x: torch.Tensor, recipe: str, role: str) -> torch.Tensor:
    scheme, _ = recipes.get(recipe).schemes(role)
    copy, _ = reference.quantize(x.detach().contiguous(), scheme, None)
    return reference.dequantize(copy).double().reshape(x.shape)


def assert_is_product(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, recipe: str) -> None:
    """`got` is the product of x[..., K] and weight[N, K], quantized by a recipe."""
    left, right = decoded(x, recipe, "input"), decoded(weight, recipe, "weight")
    bound = (x.shape[-1] + 8) * 2.0**-24 * (left.abs() @ right.abs().T)
    difference = (got.double().reshape(bound.shape) - left @ right.T).abs()
    assert (difference <= bound).all()


class Einsum(nn.Module):
    def __init__(self, equation: str, sizes: tuple[int, ...]):
        super().__init__()
        torch.manual_seed(0)
        self.equation, self.weight = equation, nn.Parameter(torch.randn(sizes))

    def forward(self, x):
        first = self.equation.split(",")[0]
        operands = (x, self.weight) if len(first) == x.dim() else (self.weight, x)
        return torch.einsum(self.equation, *operands)


# Equation, sizes of x and of the parameter, the parameter as [N, K], the result as [..., N].
EINSUMS = [
    ("bsk,nk->bsn", (2, 5, 33), (20, 33), lambda w: w, lambda y: y),
    ("bsk,kn->bsn", (2, 5, 33), (33, 20), lambda w: w.T, lambda y: y),
    ("bk,nk->bn", (5, 33), (20, 33), lambda w: w, lambda y: y),
    ("bsd,dhe->bshe", (2, 5, 33), (33, 4, 6), lambda w: w.reshape(33, 24).T, lambda y: y.flatten(2)),
    ("bsd,hde->bhse", (2, 5, 33), (4, 33, 6), lambda w: w.mT.reshape(24, 33), lambda y: y.transpose(1, 2).flatten(2)),
    ("nk,bsk->bsn", (2, 5, 33), (20, 33), lambda w: w, lambda y: y),
    ("bsk,nk->nbs", (2, 5, 33), (20, 33), lambda w: w, lambda y: y.permute(1, 2, 0)),
]


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize(("equation", "x_sizes", "sizes", "as_matrix", "as_rows"), EINSUMS, ids=[e[0] for e in EINSUMS])
def test_einsum_with_a_parameter_is_a_linear(equation, x_sizes, sizes, as_matrix, as_rows, recipe, gemm_calls):
    model, x = Einsum(equation, sizes), torch.randn(x_sizes)
    net = steelyard.compile(model, recipe)
    with torch.no_grad():
        got, exact = net(x), model(x)
    assert (got.shape, got.is_contiguous()) == (exact.shape, exact.is_contiguous())
    assert_is_product(as_rows(got), x, as_matrix(model.weight), recipe)
    assert len(gemm_calls) == 1
    (row,) = net.explain().rows
    rows, (columns, depth) = x.numel() // 33, as_matrix(model.weight).shape
    assert (row.kind, row.M, row.N, row.K, row.reason) == ("fprop", str(rows), str(columns), str(depth), "")


@pytest.mark.parametrize(("equation", "sizes"), [("bshe,hed->bsd", (2, 5, 4, 6)), ("bhse,hed->bsd", (2, 4, 5, 6))])
def test_einsum_that_contracts_two_dims(equation, sizes, gemm_calls):
    # With one scale per tensor, the order of the two dims makes no difference.
    model, x = Einsum(equation, (4, 6, 33)), torch.randn(sizes)
    with torch.no_grad():
        got = steelyard.compile(model, "fp8-current")(x)
    heads_last = x if equation.startswith("bs") else x.transpose(1, 2)
    assert_is_product(got, heads_last.flatten(2), model.weight.reshape(24, 33).T, "fp8-current")
    assert len(gemm_calls) == 1


class ThreeEinsums(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList(torch.randn(33, 4, 6) for _ in range(3))

    def forward(self, x):
        return [torch.einsum("bsd,dhe->bhse", x, weight) for weight in self.weights]


def test_einsums_of_one_input_quantize_it_once(quantized_shapes):
    model, x = ThreeEinsums(), torch.randn(2, 5, 33)
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        got = net(x)
    for result, weight in zip(got, model.weights, strict=True):
        assert_is_product(result.transpose(1, 2).flatten(2), x, weight.reshape(33, 24).T, "mxfp8")
    inputs = [shape for shape in quantized_shapes if shape[-1] == 33 and shape[0] != 24]
    assert len(inputs) == 1
    assert len(quantized_shapes) == 4


class PartsOfParameters(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Parameter(torch.randn(60, 33))
        self.columns = nn.Parameter(torch.randn(33, 60))
        self.stack = nn.Parameter(torch.randn(3, 20, 33))

    def parts(self):
        yield from self.rows.chunk(3)
        yield from self.rows.split([10, 50])
        yield self.rows[7:40:3]
        yield self.columns[:, 20:41].t()
        yield from self.stack.unbind()
        yield self.stack[1]
        yield self.stack[:, 4]

    def forward(self, x):
        return [functional.linear(x, part) for part in self.parts()]


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
def test_parts_of_parameters_are_weights_and_hoisted(recipe, gemm_calls, quantized_shapes):
    model, x = PartsOfParameters(), torch.randn(2, 5, 33)
    net = steelyard.compile(model, recipe)
    with torch.no_grad():
        got = net(x)
    parts = list(model.parts())
    assert len(gemm_calls) == len(got) == len(parts) == 12
    for result, part in zip(got, parts, strict=True):
        assert_is_product(result, x, part, recipe)
    quantized_shapes.clear()
    with torch.no_grad():
        net(x)
    assert len(quantized_shapes) == 1
    with torch.no_grad():
        model.stack.mul_(-2)
        for result, part in zip(net(x), model.parts(), strict=True):
            assert_is_product(result, x, part, recipe)


class SlicedByLength(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.positions, self.linear = nn.Parameter(torch.randn(64, 33)), nn.Linear(33, 33)

    def forward(self, x):
        return functional.linear(self.linear(x), self.positions[: x.shape[0]])


def test_a_parameter_cut_by_a_dynamic_size_stays_in_high_precision():
    model = SlicedByLength()
    net = steelyard.compile(model, "mxfp8", overrides={"linear": None})
    with torch.no_grad():
        for length in (5, 9, 12):
            x = torch.randn(length, 33)
            if length > 5:
                torch.testing.assert_close(net(x), model(x))
            else:
                assert_is_product(net(x), model.linear(x), model.positions[:5], "mxfp8")
    assert [row.reason for row in net.explain().rows if row.M == "?" and row.layer != "linear"] == [
        "no operand is a parameter"
    ]


class Copies(nn.Module):
    """Copies that MLIR, whose tensors have no memory, could fold into the input itself or into one constant."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("state", torch.randn(4))

    def forward(self, x):
        always = torch.ones(4, 4, dtype=torch.bool)
        copies = [
            *(x.clone(), torch.cat([x]), torch.where(always, x, x), x[1:].clone(), x.t().contiguous()),
            *(x + torch.zeros(4, 4), x * torch.ones(4), x[:, :1].sort(-1)[0], torch.stack([x])[0], self.state.clone()),
            *(torch.zeros(3), torch.full((2, 2), 7.0), torch.ones(3, dtype=torch.int64), torch.tril_indices(3, 3)),
            *(torch.tensor([1.0, 2.0]), x + torch.tensor([1.0, 2.0, 3.0, 4.0]), x.new_tensor(3.0)),
        ]
        product = self.linear(x)
        x.add_(1)
        self.state.mul_(2)
        return product, copies


def test_copies_and_constants_share_no_memory_with_anything():
    model = Copies()
    net = steelyard.compile(model, "mxfp8")
    values = torch.randn(4, 4)
    for _ in range(2):
        x, other, state = values.clone(), values.clone(), model.state.clone()
        with torch.no_grad():
            got = net(x)[1]
            model.state.copy_(state)
            expected = model(other)[1]
        assert torch.equal(x, other)
        for one, two in zip(got, expected, strict=True):
            assert torch.equal(one, two)
            assert one.stride() == two.stride()
        # A program that kept one of these would return it changed the next time.
        for one in got:
            one.add_(100)
        assert torch.equal(x, other)


class Trained(nn.Module):
    """An einsum, parts of a parameter and constants, on the way to a loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.heads, self.parts = nn.Parameter(torch.randn(33, 4, 6)), nn.Parameter(torch.randn(50, 24))

    def forward(self, x):
        x = torch.einsum("bsd,dhe->bshe", x, self.heads).flatten(2) * torch.tensor([2.0] * 24) + torch.zeros(1)
        return [functional.linear(x, part) for part in self.parts.split([20, 30])]


def test_every_spelling_trains_quantized(gemm_calls):
    model, x = Trained(), torch.randn(2, 5, 33, requires_grad=True)
    net = steelyard.compile(model, "mxfp8")
    gradients = {}
    for name, module in (("net", net), ("model", model)):
        sum((result * result).sum() for result in module(x)).backward()
        gradients[name] = [tensor.grad.clone() for tensor in (x, *model.parameters())]
        model.zero_grad()
        x.grad = None
    # Three products with parameters, each with both of its gradients.
    assert len(gemm_calls) == 9
    assert sorted(row.kind for row in net.explain().rows) == ["dgrad"] * 3 + ["fprop"] * 3 + ["wgrad"] * 3
    for got, exact in zip(gradients["net"], gradients["model"], strict=True):
        assert 0 < (got - exact).norm() < 0.12 * exact.norm()
