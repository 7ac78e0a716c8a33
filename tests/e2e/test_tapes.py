"""Programs on tapes have the bits of programs that Python calls kernel by kernel."""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from small_models import make_bert, make_gpt2, make_llama, make_mlp, make_vit
from tape_calls import calls_of_steps
from torch import nn
from transformers import StaticCache

import steelyard
from steelyard.errors import SteelyardError

MODELS = {"mlp": make_mlp, "llama": make_llama, "bert": make_bert, "gpt2": make_gpt2, "vit": make_vit}


pytestmark = pytest.mark.usefixtures("with_tapes")


def tensors_of(output):
    values = output.to_tuple() if hasattr(output, "to_tuple") else output if isinstance(output, tuple) else (output,)
    return [value for value in values if isinstance(value, torch.Tensor)]


VIEWS = (
    "permute",
    "reshape",
    "view",
    "_unsafe_view",
    "transpose.int",
    "slice.Tensor",
    "select.int",
    "unsqueeze",
    "expand",
)

POSITIONS = {"arange", "add.Tensor", "add.Scalar", "le.Tensor", "_to_copy", "mul.Tensor", "cat", "cos", "sin"}
"""What torch computes before the tape: positions, and the cosines and sines of them."""


def torch_ops_in(lowered: str) -> list[str]:
    """What torch computes in a lowered program, beside views and sizes."""
    found = re.findall(r'(?<!")torch\.aten\.([\w.]+)|"torch\.aten\.([\w.]+)"', lowered)
    return [name for pair in found for name in pair if name and name not in (*VIEWS, "size.int")]


def count_tapes(net) -> int:
    return net.ir("tape").count("tape ")


@pytest.mark.every(4)
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8", "fp8-delayed"])
@pytest.mark.parametrize("name", MODELS)
def test_inference_has_the_bits_of_python(name, recipe, without_tapes):
    model, arguments = MODELS[name]()
    plain = without_tapes(model, recipe)
    taped = steelyard.compile(model, recipe)
    with torch.no_grad():
        for _ in range(2):
            expected, found = plain(**arguments), taped(**arguments)
            assert all(map(torch.equal, tensors_of(expected), tensors_of(found)))
    assert count_tapes(taped)


def test_a_decoding_step_is_one_tape(whole_nets, without_tapes):
    """A cache grows by a token at a time: its size is known only at run time."""
    model, arguments = make_llama()
    results, nets = [], (without_tapes(model, "nvfp4"), steelyard.compile(model, "nvfp4"))
    with torch.no_grad():
        for net in nets:
            output = net(**arguments, use_cache=True)
            logits = [output.logits]
            for token in (3, 5, 7, 9):
                output = net(torch.tensor([[token]] * len(output.logits)), past_key_values=output.past_key_values)
                logits.append(output.logits)
            results.append(logits)
    assert all(map(torch.equal, *results))
    last = nets[1].ir("tape").split("// graph")[-1]
    assert last.count("tape ") == 1
    assert last.count("lookup_") == 1
    assert last.count("gemm_") == 15
    assert last.count("attention_") == 2
    assert last.count("concatenate_") == 4
    lowered = nets[1].ir("lowered").split("module @graph")[-1]
    assert set(torch_ops_in(lowered)) <= POSITIONS


def test_steps_over_a_static_cache_are_one_tape(whole_nets, without_tapes):
    """Keys and values are written into the cache where it lies, by the tape."""
    model, arguments = make_llama()
    results, nets = [], (without_tapes(model, "nvfp4"), steelyard.compile(model, "nvfp4"))
    with torch.no_grad():
        for net in nets:
            cache = StaticCache(config=model.config, max_cache_len=20)
            logits = [net(**arguments, past_key_values=cache).logits]
            for token in (3, 5, 7):
                tokens = torch.tensor([[token]] * len(logits[0]))
                logits.append(net(tokens, past_key_values=cache).logits)
            results.append([*logits, *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))])
    assert all(map(torch.equal, *results))
    last = nets[1].ir("tape").split("// graph")[-1]
    assert last.count("tape ") == 1
    assert last.count("write_rows_") == 4
    lowered = nets[1].ir("lowered").split("module @graph")[-1]
    assert set(torch_ops_in(lowered)) <= POSITIONS


def test_norms_that_others_read_are_on_the_tape(whole_nets):
    model, arguments = make_bert()
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        found, expected = net(**arguments).last_hidden_state, model(**arguments).last_hidden_state
    assert (found - expected).norm() < 0.1 * expected.norm()
    assert count_tapes(net) == 1
    assert net.ir("tape").count(" norm_") == 5


class Rows(nn.Module):
    """What is computed of whole rows, between two products."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(48, 40), nn.Linear(40, 24)
        self.norm = nn.RMSNorm(24)

    def forward(self, x):
        shares = self.first(x).softmax(-1)
        made = self.second(shares * (shares - shares.mean(-1, keepdim=True)))
        return self.norm(made), made.sum(-1), made.cos() + made.pow(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_functions_of_rows_are_on_the_tape(dtype, without_tapes):
    torch.manual_seed(0)
    model, x = Rows().eval().to(dtype), torch.randn(3, 7, 48, dtype=dtype)
    plain, taped = without_tapes(model, "mxfp8"), steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        found = taped(x)
        assert all(map(torch.equal, plain(x), found))
        close = {torch.float32: 0.1, torch.bfloat16: 0.15}[dtype]
        expected = model.double()(x.double())
    assert all((one - other).norm() < close * other.norm() for one, other in zip(found, expected, strict=True))
    if dtype is torch.float32:
        assert count_tapes(taped) == 1
        assert not torch_ops_in(taped.ir("lowered"))
    assert {"mean", "sum", "softmax"} <= set(re.findall(r'function = "(\w+)"', taped.ir("lowered")))


def test_a_token_that_there_is_none_of(without_tapes):
    model = nn.Sequential(nn.Embedding(101, 32), nn.Linear(32, 32), nn.Linear(32, 8)).eval()
    for net in (without_tapes(model, "mxfp8"), steelyard.compile(model, "mxfp8")):
        with torch.no_grad(), pytest.raises(IndexError, match="index 101 is out of range"):
            net(torch.tensor([[3, 101]]))


def test_an_embedding_that_is_quantized():
    """The head, a quantized parameter, is the embedding, too: torch decodes its rows."""
    model, arguments = make_gpt2()
    net = steelyard.compile(model, "mxfp8", weights="quantized")
    with torch.no_grad():
        first = net(**arguments).logits
        assert torch.equal(net(**arguments).logits, first)


class Branches(nn.Module):
    """Ops of torch's between kernels, a result that is read twice, and a view of one that is returned."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(48, 48) for _ in range(3))

    def forward(self, x):
        a = self.first(x)
        b = self.second(a.transpose(0, 1)).atan()
        c = self.third(b + 1)
        return a, c.transpose(0, 1), self.second(a)[1:, :, ::2]


@pytest.mark.every(3)
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8", "fp8-current", "fp8-block"])
def test_training_has_the_bits_of_python(recipe, without_tapes):
    torch.manual_seed(0)
    model = Branches()
    results = []
    for compiled in (without_tapes(model, recipe), steelyard.compile(model, recipe)):
        model.zero_grad()
        torch.manual_seed(1)
        x = torch.randn(6, 7, 48, requires_grad=True)
        outputs = compiled(x)
        sum(output.square().sum() for output in outputs).backward()
        results.append([*outputs, x.grad, *(parameter.grad for parameter in model.parameters())])
    assert all(map(torch.equal, *results))


class Encoder(nn.Module):
    """Norms and embeddings as models have them: with and without weights, padded, frozen."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50, 48, padding_idx=1), nn.Embedding(16, 48)
        self.first, self.block, self.last = nn.LayerNorm(48, bias=False), Block(), nn.LayerNorm(48)
        self.plain, self.head = nn.LayerNorm(48, elementwise_affine=False), nn.Linear(48, 24)
        self.last.weight.requires_grad_(False)

    def forward(self, tokens):
        x = self.first(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))
        return self.head(self.plain(self.last(self.block(x))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_and_embeddings_of_training_have_the_bits_of_python(dtype, without_tapes):
    torch.manual_seed(0)
    model, tokens = Encoder().to(dtype), torch.randint(0, 50, (3, 9))
    results, nets = [], (without_tapes(model, "mxfp8"), steelyard.compile(model, "mxfp8"))
    for net in nets:
        model.zero_grad()
        output = net(tokens)
        output.square().sum().backward()
        results.append([output, *(p.grad for p in model.parameters() if p.requires_grad)])
    assert all(map(torch.equal, *results))
    model.zero_grad()
    model(tokens).square().sum().backward()
    expected = [p.grad for p in model.parameters() if p.requires_grad]
    assert all((a - b).norm() < 0.2 * b.norm() for a, b in zip(results[0][1:], expected, strict=True))
    names = {name for name, is_step in calls_of_steps(nets[1].ir("lowered")) if is_step}
    assert {"norm", "norm_backward", "lookup", "add_rows"} <= names


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", ["nvfp4", "fp8-delayed"])
def test_steps_of_training_have_the_bits_of_python(recipe, without_tapes):
    """State goes from step to step: scales and their histories, or random bits."""
    results, nets = [], []
    for compile_model in (without_tapes, steelyard.compile):
        torch.manual_seed(0)
        model, arguments = make_llama()
        model.train()
        nets.append(compile_model(model, recipe))
        losses = []
        for _ in range(3):
            loss = nets[-1](**arguments).logits.square().mean()
            loss.backward()
            losses.append(loss)
        results.append([*losses, *(parameter.grad for parameter in model.parameters())])
    assert all(map(torch.equal, *results))
    kernels = {"nvfp4": {"attention_backward"}, "fp8-delayed": {"attention_backward", "amax", "update_scale"}}[recipe]
    calls = calls_of_steps(nets[1].ir("lowered"))
    assert kernels <= {name for name, is_step in calls if is_step}
    assert not kernels & {name for name, is_step in calls if not is_step}


def make_encoder():
    return Encoder(), {"tokens": torch.randint(0, 50, (3, 9))}


@pytest.mark.parametrize("make", [make_llama, make_bert, make_gpt2, make_encoder])
def test_a_step_of_training_is_two_tapes(whole_nets, make):
    """Norms, rotations, activations, and the gradients of all of them, are kernels between the GEMMs."""
    model, arguments = make()
    net = steelyard.compile(model.eval(), "mxfp8")
    sum(output.square().mean() for output in tensors_of(net(**arguments))).backward()
    headings = [line for line in net.ir("tape").splitlines() if "steps; takes" in line]
    assert [heading.split(":")[0] for heading in headings] == [f"// graph0 @{name}, tape 0" for name in STEP]
    lowered = net.ir("lowered")
    assert all(is_step for _, is_step in calls_of_steps(lowered))
    for function in re.split(r"func\.func (?=@)", lowered)[1:]:
        before, _, after = function.rpartition("scaled.tape")
        assert "call @" in before
        assert not torch_ops_in(after)
    # Of a BERT, what numbers its places.
    assert set(torch_ops_in(lowered)) <= POSITIONS | {"gather"}


STEP = ("forward", "backward")


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(48), nn.LayerNorm(48)
        self.heads, self.out = nn.Linear(48, 3 * 48), nn.Linear(48, 48)
        self.up, self.down = nn.Linear(48, 96), nn.Linear(96, 48)

    def forward(self, x):
        batch, tokens, width = x.shape
        query, key, value = self.heads(self.before(x)).view(batch, tokens, 3, 3, 16).permute(2, 0, 3, 1, 4)
        made = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(made.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))


def make_linears():
    widths = zip((48, 64, 40), (64, 40, 24), strict=True)
    return nn.Sequential(*(layer for sizes in widths for layer in (nn.Linear(*sizes), nn.ReLU())))


@pytest.mark.every(7)
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8", "fp8-current"])
@pytest.mark.parametrize(("make", "tapes"), [(Branches, 3), (make_linears, 1), (Block, 1)])
@torch.no_grad()
def test_sizes_known_only_at_run_time(make, tapes, recipe, without_tapes):
    """Sizes end no tape: only what torch computes of a result does, in branches an arctangent and a copy."""
    torch.manual_seed(0)
    model = make().eval()
    plain, taped = without_tapes(model, recipe), steelyard.compile(model, recipe)
    for batch, tokens in ((4, 3), (4, 8), (4, 31), (4, 1), (3, 64), (5, 7), (9, 2)):
        x = torch.randn(batch, tokens, 48)
        assert all(map(torch.equal, tensors_of(plain(x)), tensors_of(taped(x))))
    counts = Counter(re.findall(r"// (graph\d+) @forward, tape", taped.ir("tape")))
    assert len(counts) >= 3, "one for the first sizes, one for any tokens, one for any batch, too"
    assert max(counts.values()) == tapes


@torch.no_grad()
def test_memory_counts_what_tapes_keep(with_tapes):
    net = steelyard.compile(make_linears().eval(), "mxfp8")
    for rows in (3, 8, 4000, 31):
        net(torch.randn(rows, 48))
        kept = net.memory()["workspace"]
        if rows == 4000:
            large = kept
    # At least what lies between two linears at once: floats and their codes.
    assert large >= 4000 * (64 * 4 + 64)
    assert kept < large / 20


def test_calls_of_many_threads():
    model = Branches().eval()
    net = steelyard.compile(model, "nvfp4")
    inputs = [torch.randn(4, 9, 48) for _ in range(8)]
    with torch.no_grad():
        expected = [net(x) for x in inputs]

    def check(number):
        with torch.no_grad():
            return all(map(torch.equal, net(inputs[number % 8]), expected[number % 8]))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(200)))


def test_decoding_in_many_threads():
    model, arguments = make_llama()
    net = steelyard.compile(model, "nvfp4")

    def decode(first):
        cache = StaticCache(config=model.config, max_cache_len=16)
        with torch.no_grad():
            logits = [net(**arguments, past_key_values=cache).logits]
            for token in (first, 5, 7):
                logits.append(net(torch.tensor([[token]] * 2), past_key_values=cache).logits)
        return logits

    expected = [decode(first) for first in range(4)]
    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(decode, [number % 4 for number in range(40)])):
            assert all(map(torch.equal, found, expected[number % 4]))


def test_a_tape_prints_its_steps():
    model, arguments = make_mlp()
    net = steelyard.compile(model, "mxfp8")
    with torch.no_grad():
        net(**arguments)
    text = net.ir("tape")
    heading, *steps = text.splitlines()
    assert heading.startswith("// graph0 @forward, tape 0: 6 steps; takes tensor t0, ")
    assert "quantize_0(t0) -> t1: 5x37 uint8 in arena 0, t2: 5x2 uint8 in arena 192" in steps[0]
    assert "gemm_2" in steps[-1]
    assert "5x10 float32 in caller 0" in steps[-1]
    with pytest.raises(SteelyardError, match="look at stage lowered by layer"):
        net.ir("tape", layer="0")
