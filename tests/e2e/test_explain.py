"""What `explain()` says beyond the rows: shares, warnings, and a table that fits a page."""

import threading
import warnings

import pytest
import torch
from oracle import assert_follows, make_oracle
from small_models import make_mlp
from torch import nn

import steelyard
from steelyard.errors import SteelyardWarning


@pytest.fixture
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class Half(nn.Module):
    """Two layers of one size, of which the second runs outside of graphs."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(32, 32)
        self.outside = nn.Linear(32, 32, bias=False)

    def forward(self, x, y):
        return self.inside(x), self.run_outside(y)

    @torch.compiler.disable
    def run_outside(self, y):
        return y @ self.outside.weight.T


def test_shares_are_those_of_the_rows():
    net = steelyard.compile(Half(), "mxfp8")
    with torch.no_grad():
        net(torch.randn(10, 32), torch.randn(6, 32))
    inside, outside = net.explain().rows
    assert (inside.flops, outside.flops) == (2 * 10 * 32 * 32, 2 * 6 * 32 * 32)
    assert (outside.layer, outside.kind, outside.M, outside.N, outside.K) == ("", "fprop", "6", "32", "32")
    assert "outside of compiled graphs" in outside.reason
    shares = net.explain().shares
    assert shares.quantized_flops / shares.flops == 10 / 16
    assert shares.weight_bytes == 4 * (2 * 32 * 32 + 32)
    assert shares.quantized_weight_bytes == 4 * 32 * 32
    assert net.explain().splitlines()[-1] == "quantized: 62.5% of the FLOPs of GEMMs, 49.2% of the bytes of parameters"


def test_a_warning_says_once_that_little_is_quantized():
    net = steelyard.compile(Half(), "mxfp8")
    expected = r"only 48% of the FLOPs of GEMMs are quantized \(52%: torch runs it outside"
    with torch.no_grad():
        with pytest.warns(UserWarning, match=expected):
            net(torch.randn(10, 32), torch.randn(11, 32))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            net(torch.randn(3, 32), torch.randn(11, 32))
            net(torch.randn(4, 32), torch.randn(11, 32))


@pytest.mark.usefixtures("no_warning")
def test_no_warning_where_most_is_quantized_or_the_user_asked():
    model, arguments = make_mlp()
    with torch.no_grad():
        steelyard.compile(model, "mxfp8")(**arguments)
        steelyard.compile(model, "mxfp8", overrides={"[024]": None})(**arguments)
    net = steelyard.compile(model, steelyard.recipes.MXFP8BlockScaling(backward="high_precision"))
    net(**arguments).sum().backward()


def test_a_float64_model_warns():
    model, arguments = make_mlp()
    net = steelyard.compile(model.double(), "mxfp8")
    with torch.no_grad(), pytest.warns(UserWarning, match=r"only 0% .* operands of f64"):
        net(arguments["input"].double())
    assert [(row.M, row.N, row.K) for row in net.explain().rows] == [
        ("5", "131", "37"),
        ("5", "70", "131"),
        ("5", "10", "70"),
    ]


@pytest.mark.usefixtures("no_warning")
def test_the_layers_of_a_transformer_encoder_are_quantized_in_inference():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(48, 4, 80, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 7, 48)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        net(x, src_key_padding_mask=padding)
        assert torch.backends.mha.get_fastpath_enabled()
    quantized = [row.layer for row in net.explain().rows if row.is_quantized]
    assert {f"layers.{i}.{name}" for i in range(2) for name in ("linear1", "linear2")} < set(quantized)
    assert len(quantized) == 2 * 4


def test_the_fast_path_is_restored_after_calls_of_several_threads():
    model = nn.TransformerEncoderLayer(32, 2, 48, batch_first=True).eval()
    net, x = steelyard.compile(model, "mxfp8"), torch.randn(2, 5, 32)

    def call():
        with torch.no_grad():
            for _ in range(5):
                net(x)

    call()
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.backends.mha.get_fastpath_enabled()
    assert len(net._steelyard.backend.compilations) == 1


def test_parameters_of_functional_call_are_parameters(gemm_calls):
    model, arguments = make_mlp()
    other, _ = make_mlp()
    with torch.no_grad():
        other[0].weight.mul_(-1.5)
    net = steelyard.compile(model, "mxfp8")
    given = {name: p.detach().clone() for name, p in other.named_parameters()}
    with torch.no_grad():
        got = torch.func.functional_call(net, given, (arguments["input"],))
        assert_follows(got, make_oracle(other, "mxfp8")(**arguments), other(**arguments))
        assert [row.layer for row in net.explain().rows if row.is_quantized] == ["0", "2", "4"]
        # The net's own parameters are as they were, and are what it runs with.
        assert_follows(net(**arguments), make_oracle(model, "mxfp8")(**arguments), model(**arguments))
    assert len(gemm_calls) == 6


def test_gradients_of_functional_call():
    model, arguments = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    given = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    torch.func.functional_call(net, given, (arguments["input"],)).square().sum().backward()
    net(**arguments).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(given[name].grad, parameter.grad)


@pytest.mark.parametrize(
    "transform",
    [
        lambda net, x: torch.func.grad(lambda x: net(x).sum())(x),
        lambda net, x: torch.func.vmap(net)(x),
        lambda net, x: torch.func.jacrev(net)(x),
        lambda net, x: torch.func.jvp(net, (x,), (x,)),
    ],
    ids=["grad", "vmap", "jacrev", "jvp"],
)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_net_under_a_transform_of_torch_func_is_refused(transform, is_compiled):
    model, arguments = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    if is_compiled:
        net(arguments["input"])
    with pytest.raises(steelyard.errors.UnsupportedModelError, match=r"torch\.func\.grad, vmap.*torch\.autograd\.grad"):
        transform(net, arguments["input"])


class Chain(nn.Module):
    """Layers with long names, in modules with long names."""

    def __init__(self, depth: int):
        super().__init__()
        self.projection_of_the_keys_and_values = nn.Linear(48, 48)
        self.a_module_with_a_very_long_name = Chain(depth - 1) if depth else nn.Identity()

    def forward(self, x):
        return self.a_module_with_a_very_long_name(self.projection_of_the_keys_and_values(x))


@torch.no_grad()
def test_the_table_fits_a_page():
    net = steelyard.compile(Chain(4), "mxfp8", overrides={"projection*": None})
    net(torch.randn(5, 48))
    text = net.explain()
    assert max(map(len, text.splitlines())) <= 120
    # Nothing is cut off: the first column, joined again, has every name.
    joined = "".join(line[: text.index("kind")].strip() for line in text.splitlines())
    assert all(row.layer in joined for row in text.rows)
    assert "[1] override 'projection*' asks for high precision" in text


def test_one_gemm_is_singular():
    net = steelyard.compile(nn.Linear(32, 8), "mxfp8")
    with torch.no_grad():
        net(torch.randn(3, 32))
    assert "\n1 GEMM quantized, 0 left in high precision\n" in net.explain()


@pytest.mark.parametrize("padding", ["valid", "same", 0, 1, (0, 1)], ids=str)
def test_every_convolution_has_a_row(padding):
    """MLIR writes some of them again in another spelling."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=padding), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 32))
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        net(torch.randn(2, 3, 8, 8))
    assert [(row.layer, row.reason) for row in net.explain().rows] == [
        ("0", "convolutions stay in high precision"),
        ("3", ""),
    ]


def test_a_warning_shows_the_line_that_called_the_net():
    net = steelyard.compile(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 8)), "mxfp8")
    with pytest.warns(SteelyardWarning, match="of the FLOPs of GEMMs are quantized") as caught, torch.no_grad():
        net(torch.randn(2, 3, 4, 4))
    assert [warning.filename for warning in caught if issubclass(warning.category, SteelyardWarning)] == [__file__]


def test_rows_name_the_line_of_the_model_that_calls_the_gemm():
    net = steelyard.compile(Half(), "mxfp8")
    net(torch.randn(4, 32), torch.randn(4, 32))
    line = Half.forward.__code__.co_firstlineno + 1
    assert {row.layer: row.source for row in net.explain().rows} == {"inside": f"{__file__}:{line}", "": ""}
