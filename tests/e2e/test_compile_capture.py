import copy
import io
import pickle
import subprocess
import sys
import threading
from importlib.metadata import entry_points

import pytest
import torch
from breaking_models import Blocks, Pair, Pairs
from oracle import assert_follows, make_oracle
from small_models import make_llama, make_mlp, quantized_layers
from torch import nn

import steelyard
from steelyard.driver.frames import Frames
from steelyard.errors import FileError


def graph_count(net) -> int:
    return len(net._steelyard.backend.compilations)


@torch.no_grad()
def assert_follows_the_oracle(net, model: nn.Module, *arguments, recipe: str = "mxfp8") -> torch.Tensor:
    got = net(*arguments)
    assert_follows(got, make_oracle(model, recipe)(*arguments), model(*arguments))
    return got


class Block(nn.Module):
    """A residual block with a graph break."""

    def __init__(self, size: int):
        super().__init__()
        self.up = nn.Linear(size, 2 * size)
        self.down = nn.Linear(2 * size, size)

    def forward(self, x):
        hidden = torch.relu(self.up(x))
        torch._dynamo.graph_break()
        return x + self.down(hidden)


class Counter(nn.Module):
    """Counts its calls in a buffer, and what it saw in another."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(33, 20)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(33))

    def forward(self, x):
        self.calls += 1
        self.total.add_(x.sum(0))
        return self.linear(x) + self.calls


class Attention(nn.Module):
    """Tokens that see each other."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 48)
        self.qkv = nn.Linear(48, 3 * 48)
        self.out = nn.Linear(48, 50)

    def forward(self, tokens):
        x = self.qkv(self.embedding(tokens))
        q, k, v = x.unflatten(-1, (3, 4, 12)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(2))


class Writer(nn.Module):
    """Writes its input, and returns it and a view of it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(40, 40)

    def forward(self, x):
        x.add_(1)
        return self.linear(x).relu_(), x, x[1:]


class Tied(nn.Module):
    """Two layers, one weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(40, 40)
        self.second = nn.Linear(40, 40, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def test_twenty_nets_all_run_quantized(gemm_calls):
    torch.manual_seed(0)
    models = [nn.Linear(32 + i, 8) for i in range(20)]
    nets = [steelyard.compile(model, "mxfp8") for model in models]
    with torch.no_grad():
        for i, net in enumerate(nets):
            net(torch.randn(3, 32 + i))
    assert [a.shape for a, *_ in gemm_calls] == [(3, 32 + i) for i in range(20)]
    assert all(len(quantized_layers(net)) == 1 for net in nets)


def test_graph_break_gives_several_graphs():
    torch.manual_seed(0)
    model = Block(48)
    net = steelyard.compile(model, "mxfp8")
    assert_follows_the_oracle(net, model, torch.randn(5, 48))
    assert graph_count(net) == 2
    assert quantized_layers(net) == ["up", "down"]


@pytest.mark.every(4)
@pytest.mark.parametrize("stage", ["traced", "raised", "quantized", "fused", "lowered"])
def test_several_graphs_are_modules_in_one_that_the_tools_read(stage, tmp_path):
    torch.manual_seed(0)
    net = steelyard.compile(Block(48), "mxfp8", overrides={"down": "nvfp4"}).lower(torch.randn(5, 48))
    path = tmp_path / "net.mlir"
    path.write_text(net.ir(stage))
    command = [sys.executable, "-m", "steelyard.tools.opt", path]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert [line.strip() for line in run.stdout.splitlines() if "module @" in line] == [
        "module @graph0 {",
        "module @graph1 {",
    ]


def test_many_blocks_with_graph_breaks_all_run_quantized(gemm_calls):
    # More blocks than torch's limit of compilations per code object, beyond which it runs the rest uncompiled.
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(48) for _ in range(12)))
    net = steelyard.compile(model, "mxfp8")
    assert_follows_the_oracle(net, model, torch.randn(5, 48))
    assert len(gemm_calls) == 24
    assert sorted(quantized_layers(net)) == sorted(f"{i}.{name}" for i in range(12) for name in ("up", "down"))


class PairsByName(Pairs):
    """Pairs in a dictionary, reached in every way that it has."""

    def __init__(self):
        super().__init__()
        self.pairs = nn.ModuleDict({"first": Pair(), "second": Pair(), "third": Pair()})

    def forward(self, x):
        x = self.pairs["first"](x)
        for pair in self.pairs.values():
            x = pair(x)
        for _, pair in self.pairs.items():
            x = pair(x)
        return x


@pytest.mark.parametrize("model_class", [Pairs, Blocks, PairsByName])
def test_between_graphs_torch_compiles_no_function_of_ours(model_class, monkeypatch):
    """It takes longer than to run them; but the forward of a part leads to the model's own."""
    compiled = set()

    def find_or_convert(frames, convert, frame, *arguments, **keywords):
        if frame.f_globals["__name__"].startswith("steelyard."):
            compiled.add(frame.f_code.co_name)
        return original(frames, convert, frame, *arguments, **keywords)

    original = Frames._find_or_convert
    monkeypatch.setattr(Frames, "_find_or_convert", find_or_convert)
    net = steelyard.compile(model_class(), "mxfp8")
    with torch.no_grad():
        for _ in range(2):
            net(torch.randn(16, 64))
    assert compiled <= {"forward"}


def test_overrides_reach_the_layers_of_graphs_that_modules_share(gemm_calls, quantized_shapes):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(48) for _ in range(3)))
    net = steelyard.compile(model, "mxfp8", overrides={"0.*": None, "2.down": "nvfp4"})
    x = torch.randn(5, 48)
    with torch.no_grad():
        got = net(x)
        oracle = make_oracle(model, "mxfp8", {"0.up": None, "0.down": None, "2.down": "nvfp4"})
        assert_follows(got, oracle(x), model(x))
        assert [a.scheme.family for a, *_ in gemm_calls] == ["mx", "mx", "mx", "nvfp4"]
        graphs = graph_count(net)
        net(x)
        model[1].up.weight = nn.Parameter(model[1].up.weight.detach() * -2)
        assert_follows(
            net(x), make_oracle(model, "mxfp8", {"0.up": None, "0.down": None, "2.down": "nvfp4"})(x), model(x)
        )
    assert graph_count(net) == graphs == 6
    assert quantized_shapes.count((96, 48)) == 3


def test_batch_norm_in_training_mode_updates_its_buffers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(33, 20), nn.BatchNorm1d(20), nn.Linear(20, 7)).train()
    oracle, exact = make_oracle(model, "mxfp8"), copy.deepcopy(model)
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(16, 33)
            assert_follows(net(x), oracle(x), exact(x))
    assert model[1].num_batches_tracked == 3
    assert_follows(model[1].running_mean, oracle[1].running_mean, exact[1].running_mean)
    assert_follows(model[1].running_var, oracle[1].running_var, exact[1].running_var)


def test_buffers_mutated_in_place():
    torch.manual_seed(0)
    model = Counter()
    before = copy.deepcopy(model)
    net = steelyard.compile(model, "mxfp8")
    batches = [torch.randn(4, 33) for _ in range(3)]
    with torch.no_grad():
        got = [net(x) for x in batches]
    assert model.calls == net.calls == 3
    torch.testing.assert_close(model.total, torch.cat(batches).double().sum(0).float())
    oracle = make_oracle(before, "mxfp8")
    with torch.no_grad():
        for result, x in zip(got, batches, strict=True):
            assert_follows(result, oracle(x), before(x))


def test_lower_compiles_and_changes_nothing(gemm_calls):
    torch.manual_seed(0)
    model = Counter()
    net = steelyard.compile(model, "mxfp8")
    x = torch.randn(4, 33)
    with torch.no_grad():
        assert net.lower(x) is net
        assert (model.calls, model.total.abs().sum()) == (0, 0)
        graphs = graph_count(net)
        net(x)
    assert (model.calls, graph_count(net)) == (1, graphs)


def test_tied_weight_is_quantized_once(quantized_shapes):
    torch.manual_seed(0)
    model = Tied()
    net = steelyard.compile(model, "mxfp8")
    assert_follows_the_oracle(net, model, torch.randn(5, 40))
    assert quantized_shapes.count((40, 40)) == 1
    with torch.no_grad():
        model.first.weight.mul_(-1)
    assert_follows_the_oracle(net, model, torch.randn(5, 40))


def test_new_batch_sizes_lead_to_one_more_compilation():
    model, _ = make_mlp()
    net = steelyard.compile(model, "nvfp4")
    counts = []
    for size in (5, 7, 12, 3, 33):
        assert_follows_the_oracle(net, model, torch.randn(size, 37), recipe="nvfp4")
        counts.append(graph_count(net))
    assert counts[0] == 1
    assert counts[1:] == [2] * 4
    static, dynamic = net.ir("quantized").split("func.func @forward")[1:]
    assert "?" not in static
    assert "[?,37]" in dynamic
    assert [row.M for row in net.explain().rows] == ["5"] * 3 + ["?"] * 3


def test_inputs_of_any_rank_and_of_no_rows():
    model, _ = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    for shape in ((5, 37), (37,), (2, 3, 37), (1, 37)):
        assert_follows_the_oracle(net, model, torch.randn(shape))
    assert_follows_the_oracle(net, model, torch.randn(37, 6).T)
    with torch.no_grad():
        assert net(torch.randn(0, 37)).shape == (0, 10)


def test_inputs_that_are_written_and_returned():
    torch.manual_seed(0)
    model = Writer()
    net = steelyard.compile(model, "mxfp8")
    x = torch.randn(3, 40)
    before = x.clone()
    with torch.no_grad():
        got, same, view = net(x)
        assert_follows(got, make_oracle(model, "mxfp8")(before.clone())[0], model(before.clone())[0])
    assert torch.equal(x, before + 1)
    assert same is x
    assert view.data_ptr() == x[1:].data_ptr()


def test_new_sequence_lengths_lead_to_one_more_compilation(gemm_calls):
    torch.manual_seed(0)
    model = Attention()
    net = steelyard.compile(model, "mxfp8")
    counts = []
    for batch, length in ((2, 9), (2, 11), (2, 6), (2, 30), (3, 17), (5, 4)):
        assert_follows_the_oracle(net, model, torch.randint(0, 50, (batch, length)))
        counts.append(graph_count(net))
    assert counts[:4] == [1, 2, 2, 2]
    # Another batch size may compile once more, and no further one does.
    assert counts[5] == counts[4] <= 3
    assert len(gemm_calls) == 6 * 2


@pytest.mark.parametrize("compiled_before", [True, False])
def test_threads_get_the_result_of_one(compiled_before, gemm_calls, two_threads):
    model, arguments = make_mlp()
    expected = steelyard.compile(model, "nvfp4").lower(**arguments)
    net = steelyard.compile(model, "nvfp4")
    if compiled_before:
        net.lower(**arguments)
    with torch.no_grad():
        expected = expected(**arguments)
    results, barrier = [], threading.Barrier(4)

    def call():
        barrier.wait()
        with torch.no_grad():
            results.extend(net(**arguments) for _ in range(5))

    threads = [threading.Thread(target=call) for _ in range(4)]
    gemm_calls.clear()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 20
    assert all(torch.equal(result, expected) for result in results)
    assert len(gemm_calls) == 60


def test_net_is_the_model_to_whoever_asks():
    model, _ = make_llama()
    net = steelyard.compile(model, "mxfp8")
    assert isinstance(net, type(model))
    assert list(net.state_dict()) == list(model.state_dict())
    assert [id(p) for p in net.parameters()] == [id(p) for p in model.parameters()]
    assert [name for name, _ in net.named_modules()] == [name for name, _ in model.named_modules()]
    assert net.config is model.config


def test_training_mode_is_shared_with_the_model():
    model, _ = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    net.train()
    assert model.training
    model.eval()
    assert not net.training


@pytest.mark.parametrize("called_before", [True, False])
def test_deep_copy_has_weights_of_its_own(called_before, gemm_calls):
    model, arguments = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    if called_before:
        net.lower(**arguments)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin[0].weight.zero_()
        twin[0].bias.zero_()
        gemm_calls.clear()
        from_twin, from_net = twin(arguments["input"]), net(arguments["input"])
    assert model[0].weight.abs().sum() > 0
    assert len(gemm_calls) == 6
    assert not torch.equal(from_twin, from_net)
    assert_follows_the_oracle(net, model, arguments["input"])
    assert_follows_the_oracle(twin, twin.model, arguments["input"])


def test_pickled_net_computes_the_same(gemm_calls):
    model, arguments = make_mlp()
    net = steelyard.compile(model, "nvfp4", overrides={"4": None}).lower(**arguments)
    loaded = pickle.loads(pickle.dumps(net))
    gemm_calls.clear()
    with torch.no_grad():
        assert torch.equal(loaded(**arguments), net(**arguments))
    assert len(gemm_calls) == 4


def test_saved_state_loads_into_a_plain_model_and_back():
    model, arguments = make_mlp()
    net = steelyard.compile(model, "mxfp8").lower(**arguments)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    torch.manual_seed(1)
    plain = copy.deepcopy(model)
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    plain.load_state_dict(torch.load(file, weights_only=True), strict=True)
    other = steelyard.compile(plain, "mxfp8")
    with torch.no_grad():
        assert torch.equal(other(**arguments), net(**arguments))


def test_hooks_that_are_there_before_the_first_call_run():
    model, arguments = make_mlp()
    seen = []
    model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    model[2].register_forward_hook(lambda module, inputs, output: -output)
    net = steelyard.compile(model, "mxfp8")
    net[4].register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    assert_follows_the_oracle(net, model, arguments["input"])
    assert (5, 10) in seen


def test_hooks_of_the_net_itself_run():
    model, arguments = make_mlp()
    plain = steelyard.compile(copy.deepcopy(model), "mxfp8")
    net = steelyard.compile(model, "mxfp8")
    net.register_forward_hook(lambda module, inputs, output: output + 100)
    with torch.no_grad():
        assert torch.equal(net(arguments["input"]), plain(arguments["input"]) + 100)


needs_entry_point = pytest.mark.skipif(
    not entry_points(group="torch_dynamo_backends", name="steelyard"),
    reason="the installed package does not register the backend: install it again",
)


@needs_entry_point
def test_torch_compile_runs_the_backend(gemm_calls):
    model, arguments = make_mlp()
    compiled = torch.compile(model, backend="steelyard", options={"recipe": "mxfp8"})
    assert_follows_the_oracle(compiled, model, arguments["input"])
    assert len(gemm_calls) == 3


@needs_entry_point
def test_torch_compile_without_a_recipe_says_so():
    model, arguments = make_mlp()
    compiled = torch.compile(model, backend="steelyard")
    with pytest.raises(Exception, match="recipe"), torch.no_grad():
        compiled(**arguments)


@torch.no_grad()
def test_ir_dump_has_a_numbered_file_per_pass(tmp_path):
    torch.manual_seed(0)
    net = steelyard.compile(nn.Sequential(nn.Linear(33, 40), nn.GELU(), nn.Linear(40, 7)), "mxfp8")
    net(torch.randn(4, 33))
    names = [path.name for path in net.ir_dump(tmp_path / "dump")]
    assert names[0] == "graph0_00_traced.mlir"
    assert names[-2:] == [f"graph0_{len(names) - 2:02}_scaled-verify-stage.mlir", "graph0_program.py"]
    for word in ("raise-gemms", "apply-recipe", "insert-quantize", "partition", "lower-storage", "select-kernels"):
        assert sum(f"scaled-{word}.mlir" in name for name in names) == 1
    # The passes run once more for the dump, and end with the IR of the program.
    assert (tmp_path / "dump" / names[-2]).read_text() == net.ir("lowered")
    assert (tmp_path / "dump" / names[0]).read_text() == net.ir("traced")
    (tmp_path / "file").write_text("kept")
    for path, words in ((tmp_path / "file", "File exists; choose another path"), (tmp_path / ("n" * 300), "too long")):
        with pytest.raises(FileError, match=words):
            net.ir_dump(path)
    assert {path.name for path in tmp_path.iterdir()} == {"dump", "file"}


class Scaled(nn.Module):
    """A target that a loss compares with: `is_detached` says in which way it has no gradient."""

    def __init__(self, *, is_detached: bool):
        super().__init__()
        self.linear, self.norm, self.gain = nn.Linear(32, 32), nn.LayerNorm(32), nn.Parameter(torch.ones(32))
        self.is_detached = is_detached

    def forward(self, x):
        if self.is_detached:
            return (self.norm(self.linear(x)) * self.gain).detach()
        with torch.no_grad():
            return self.norm(self.linear(x)) * self.gain


@pytest.mark.parametrize("is_detached", [True, False])
def test_what_has_no_gradient_in_a_model_has_none_in_its_net(is_detached):
    net = steelyard.compile(Scaled(is_detached=is_detached), "mxfp8")
    for batch in (4, 4, 6, 8):
        result = net(torch.randn(batch, 32))
        assert not result.requires_grad
        assert result.grad_fn is None
