"""A net that is cut into its repeated blocks has the results, rows and state of the same net captured as a whole."""

import copy
import dataclasses
import pickle

import pytest
import torch
from small_models import VOCABULARY
from torch import nn
from torch.nn import functional
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

import steelyard
from steelyard.driver import blocks
from steelyard.errors import NonFiniteError, RecipeError, UnsupportedModelError
from steelyard.recipes import NAMES

DEPTH = 4


class Block(nn.Module):
    """A layer of a GPT; the bias of attention is not shared by all."""

    def __init__(self, width: int, dropout: float = 0.0):
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, scale: float = 1.0):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).transpose(1, 3).unbind(2)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).flatten(2))) * scale
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    def __init__(self, depth: int = DEPTH, width: int = 48, dropout: float = 0.0, container: type = nn.ModuleList):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, width)
        blocks = [Block(width, dropout) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks) if container is nn.ModuleList else nn.Sequential(*blocks)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens)
        if isinstance(self.blocks, nn.Sequential):
            return self.head(self.blocks(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_llama(layers: int = DEPTH) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=layers, initializer_range=0.1, **sizes)
    return LlamaForCausalLM(config)


def tokens(length: int = 7, batch: int = 2) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


def distinct(net) -> int:
    """How many graphs went through the compiler."""
    return sum(compilation.source is compilation for compilation in net._steelyard.backend.compilations)


def assert_same_net(cut, whole) -> None:
    """Two nets have the same rows and state."""
    assert set(cut.explain().rows) == set(whole.explain().rows)
    states = [net._steelyard.backend.state.tensors for net in (cut, whole)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def compiled(model: nn.Module, recipe: str, **options) -> tuple:
    """A net in blocks and the same captured as a whole, each of a model of its own."""
    twin = copy.deepcopy(model)
    torch.manual_seed(3)
    return steelyard.compile(model, recipe, **options), steelyard.compile(twin, recipe, **(options | {"blocks": False}))


def train(net, steps: int = 2, lengths: tuple = (7,)) -> list[torch.Tensor]:
    """The outputs and parameters of some steps."""
    torch.manual_seed(1)
    optimizer, results = torch.optim.AdamW(net.parameters(), lr=1e-2), []
    for step in range(steps):
        y = net(tokens(lengths[step % len(lengths)]))
        y = y if isinstance(y, torch.Tensor) else y.logits
        y.square().mean().backward()
        results += [y.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
        optimizer.step()
        optimizer.zero_grad()
    return [*results, *(p.detach() for p in net.parameters())]


def assert_equal(left: list, right: list) -> None:
    assert len(left) == len(right)
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


MANY = [
    recipe if recipe in ("fp8-delayed", "nvfp4") else pytest.param(recipe, marks=pytest.mark.slow) for recipe in NAMES
]


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", MANY)
def test_training_has_the_bits_of_the_whole_net(recipe):
    cut, whole = compiled(Gpt(), recipe)
    assert_equal(train(cut), train(whole))
    assert_same_net(cut, whole)
    assert (distinct(cut), distinct(whole)) == (2, 1)


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", MANY)
def test_inference_has_the_bits_of_the_whole_net(recipe):
    cut, whole = compiled(Gpt(container=nn.Sequential).eval(), recipe)
    with torch.no_grad():
        assert_equal([cut(tokens()) for _ in range(2)], [whole(tokens()) for _ in range(2)])
    assert_same_net(cut, whole)
    assert (distinct(cut), distinct(whole)) == (2, 1)


def test_a_norm_before_the_head_is_torchs_own():
    """The one known difference: a kernel that fuses the norm sums in another order than torch."""
    cut, whole = compiled(make_llama().eval(), "nvfp4")
    with torch.no_grad():
        left, right = (net(tokens(), output_hidden_states=False) for net in (cut, whole))
    torch.testing.assert_close(left.logits, right.logits, rtol=1e-5, atol=1e-5)
    for one, other in zip(left.past_key_values.layers, right.past_key_values.layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)
    rows = [{row.layer: row for row in net.explain().rows if row.layer == "lm_head"}["lm_head"] for net in (cut, whole)]
    assert (rows[0].producer, rows[1].producer) == ("", "rms_norm")
    assert rows[0] == dataclasses.replace(rows[1], producer="")


@pytest.mark.slow
def test_dropout_draws_the_same_numbers():
    cut, whole = compiled(Gpt(dropout=0.3), "mxfp8")
    assert_equal(train(cut), train(whole))


@pytest.mark.slow
def test_lengths_that_differ_compile_as_often_as_those_of_the_whole_net():
    cut, whole = compiled(Gpt(), "fp8-current")
    lengths = (5, 8, 11, 6)
    assert_equal(train(cut, 4, lengths), train(whole, 4, lengths))
    assert (distinct(cut), distinct(whole)) == (4, 2)


@pytest.mark.parametrize("container", [nn.ModuleList, pytest.param(nn.Sequential, marks=pytest.mark.slow)])
def test_overrides_are_those_of_each_layer(container):
    overrides = {"blocks.1.*": None, "blocks.2.mlp.0": "nvfp4", "blocks.3.mlp.0": "nvfp4", "head": "fp8-current"}
    cut, whole = compiled(Gpt(container=container), "mxfp8", overrides=overrides)
    assert_equal(train(cut), train(whole))
    assert_same_net(cut, whole)
    # The last two blocks have equal recipes, though by patterns of their own.
    assert distinct(cut) == 4


def generate(net, cache) -> list[torch.Tensor]:
    """The logits of a prompt and four more tokens, and the keys that are left."""
    given, results = tokens(6, 1), []
    with torch.no_grad():
        for _ in range(5):
            output = net(given, past_key_values=cache, use_cache=True)
            given = output.logits[:, -1:].argmax(-1)
            results.append(output.logits)
            cache = output.past_key_values
    return [*results, *(layer.keys for layer in cache.layers)]


@pytest.mark.parametrize(
    "make_cache",
    [
        pytest.param(lambda config: None, marks=pytest.mark.slow),
        lambda config: DynamicCache(config=config),
        lambda config: StaticCache(config=config, max_cache_len=16),
    ],
    ids=["made by the model", "dynamic", "static"],
)
def test_caches_of_keys(make_cache):
    model = make_llama().eval()
    cut, whole = compiled(model, "mxfp8")
    assert_equal(generate(cut, make_cache(model.config)), generate(whole, make_cache(model.config)))
    assert distinct(cut) <= 6


@pytest.mark.slow
def test_generate_of_transformers():
    cut, whole = compiled(make_llama().eval(), "mxfp8")
    left, right = (net.generate(tokens(6, 1), max_new_tokens=6, do_sample=False) for net in (cut, whole))
    assert torch.equal(left, right)


def test_a_changed_block_is_captured_again():
    model = Gpt().eval()
    net = steelyard.compile(model, "mxfp8")
    seen = []

    def assert_as_new() -> None:
        with torch.no_grad():
            assert torch.equal(net(tokens()), steelyard.compile(model, "mxfp8")(tokens()))

    assert_as_new()
    model.blocks[2].mlp[1] = nn.SiLU()
    assert_as_new()
    handle = model.blocks[3].register_forward_hook(lambda module, given, result: result * 2)
    assert_as_new()
    handle.remove()
    assert_as_new()
    model.blocks[1].mlp[0].weight = nn.Parameter(model.blocks[1].mlp[0].weight.detach() * -2)
    assert_as_new()
    model.blocks[0].register_forward_pre_hook(lambda module, given: seen.append(len(given)))
    assert_as_new()
    assert seen


@pytest.mark.slow
def test_an_argument_of_one_block_alone():
    class Scaled(Gpt):
        def forward(self, tokens):
            x = self.embedding(tokens)
            for number, block in enumerate(self.blocks):
                x = block(x, scale=0.5) if number == 2 else block(x)
            return self.head(x)

    cut, whole = compiled(Scaled(), "mxfp8")
    assert_equal(train(cut), train(whole))
    assert_same_net(cut, whole)


def test_results_of_blocks_are_written_in_place():
    class Shifted(Gpt):
        def forward(self, tokens):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
                x += 1
                x.mul_(0.5)
            return self.head(x)

    cut, whole = compiled(Shifted(), "mxfp8")
    assert_equal(train(cut), train(whole))
    assert distinct(cut) == 2


@pytest.mark.slow
def test_a_submodule_named_like_a_product():
    class Named(Gpt):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(48, 48)

        def forward(self, tokens):
            x = self.linear(self.embedding(tokens))
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    class AndCalled(Named):
        def forward(self, tokens):
            return functional.linear(super().forward(tokens), self.embedding.weight.T[:, :VOCABULARY])

    for model, graphs in ((Named(), 3), (AndCalled(), 1)):
        net = steelyard.compile(model.eval(), "mxfp8")
        with torch.no_grad():
            net(tokens())
        assert distinct(net) == graphs


def test_no_block_is_quantized_while_torch_is_told_to_compile_nothing():
    model = Gpt().eval()
    net = steelyard.compile(model, "nvfp4")
    with torch.no_grad():
        net(tokens())
        net(tokens())
        with torch.compiler.set_stance("force_eager"):
            assert torch.equal(net(tokens()), model(tokens()))


def test_a_slice_and_an_index_of_blocks():
    class Reordered(Gpt):
        def forward(self, tokens):
            x = self.blocks[-1](self.embedding(tokens))
            for block in self.blocks[1:3]:
                x = block(x)
            return self.head(x)

    cut, whole = compiled(Reordered(), "fp8-delayed")
    assert_equal(train(cut), train(whole))
    assert_same_net(cut, whole)


@pytest.mark.slow
def test_torchs_own_encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
    cut, whole = compiled(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), "mxfp8")
    x = torch.randn(2, 5, 48)
    for net in (cut, whole):
        net(x).square().mean().backward()
    assert_equal([p.grad for p in cut.parameters()], [p.grad for p in whole.parameters()])
    assert_same_net(cut, whole)
    # The input of the first layer has no gradient.
    assert distinct(cut) == 2


@pytest.mark.slow
def test_frozen_blocks_train_the_others():
    model = Gpt()
    model.blocks[:2].requires_grad_(False)
    cut, whole = compiled(model, "mxfp8")
    assert_equal(train(cut), train(whole))
    assert_same_net(cut, whole)


def test_quantized_weights():
    cut, whole = compiled(Gpt().eval(), "nvfp4", weights="quantized")
    with torch.no_grad():
        assert_equal([cut(tokens()) for _ in range(3)], [whole(tokens()) for _ in range(3)])
    names = [{name for name, p in net.named_parameters() if type(p) is not nn.Parameter} for net in (cut, whole)]
    assert names[0] == names[1] != set()


def test_lower_leaves_no_trace():
    net = steelyard.compile(Gpt(), "fp8-delayed")
    net.lower(tokens())
    assert not net._steelyard.backend.state.tensors
    assert distinct(net) == 2


@pytest.mark.every(2)
@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_is_cut_too(make_copy):
    net = steelyard.compile(Gpt().eval(), "mxfp8", blocks=["blocks"])
    with torch.no_grad():
        expected = net(tokens())
        twin = make_copy(net)
        assert torch.equal(twin(tokens()), expected)
    assert distinct(twin) == 2


@pytest.mark.slow
def test_a_state_dict_goes_from_a_cut_net_to_a_whole_one():
    cut, whole = compiled(Gpt(), "fp8-delayed")
    train(cut)
    whole.load_state_dict(cut.state_dict())
    with torch.no_grad():
        assert torch.equal(cut(tokens()), whole(tokens()))


def test_the_layer_of_a_value_that_is_not_finite_is_named():
    model = Gpt().eval()
    model.blocks[3].mlp[0].bias.data[5] = torch.inf
    net = steelyard.compile(model, "mxfp8", check_finite=True)
    with torch.no_grad(), pytest.raises(NonFiniteError, match=r"input of layer 'blocks\.3\.mlp\.2' .* in call 1 of"):
        net(tokens())


def test_every_block_is_printed_once():
    lengths = {}
    for depth in (2, 9):
        net = steelyard.compile(Gpt(depth).eval(), "mxfp8", blocks=["blocks"])
        with torch.no_grad():
            net(tokens())
        lines = net.ir("fused").splitlines()
        calls = [line.split('"')[1] for line in lines if "scaled.call_block" in line]
        assert calls == [f"blocks.{number}" for number in range(depth)]
        lengths[depth] = len(lines) - depth
    assert len(set(lengths.values())) == 1
    text = net.ir("fused", layer="blocks.7.mlp.*")
    assert 'at "blocks.7.mlp.0"' in text
    assert "blocks.0" not in text


@pytest.mark.every(4)
@pytest.mark.parametrize(
    "code",
    [
        "return functional.linear(self.cut(tokens), self.embedding.weight)",
        "return self.cut(tokens) @ self.embedding.weight.T",
        "return self.score(tokens)",
        "return self.head(self.cut(tokens)).topk(3).values",
        "return self.head(functional.silu(self.cut(tokens)))",
        "return self.head(functional.layer_norm(self.cut(tokens), [48]))",
    ],
)
def test_what_between_blocks_must_be_seen_is_captured(code):
    """Code around blocks is plain Python: what must be seen in a graph is not left to it."""
    scope = {"functional": functional, "Gpt": Gpt, "__name__": "a_model"}
    lines = [
        "class Outer(Gpt):",
        "    def cut(self, tokens):",
        "        x = self.embedding(tokens)",
        "        for block in self.blocks:",
        "            x = block(x)",
        "        return x",
        "    def score(self, tokens):",
        "        return self.cut(tokens) @ self.embedding.weight.T",
        "    def forward(self, tokens):",
        f"        {code}",
    ]
    exec("\n".join(lines), scope)
    net = steelyard.compile(scope["Outer"](), "mxfp8")
    net(tokens())
    assert distinct(net) == 1
    assert not any("outside of compiled graphs" in row.reason for row in net.explain().rows)


class Activated(Gpt):
    """Activations beside the blocks, whose gradients no op of torch's may compute in one of two nets."""

    def __init__(self, activation: nn.Module):
        super().__init__()
        self.activation = activation

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = self.activation(block(x))
        return self.head(x)


@pytest.mark.every(3)
@pytest.mark.parametrize("activation", [nn.GELU(), nn.GELU("tanh"), nn.SiLU()], ids=str)
def test_activations_beside_blocks_have_the_bits_of_the_whole_net(activation):
    cut, whole = compiled(Activated(activation), "mxfp8")
    assert_equal(train(cut), train(whole))
    assert (distinct(cut), distinct(whole)) == (3, 1)


class Normed(Gpt):
    """Norms beside the blocks, alone and in a module with an embedding, and one that is frozen."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Sequential(nn.Embedding(VOCABULARY, 48, padding_idx=3), nn.LayerNorm(48))
        self.norm, self.frozen = nn.LayerNorm(48), nn.LayerNorm(48, bias=False)
        self.frozen.weight.requires_grad_(False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.frozen(self.norm(x)))


def test_norms_beside_blocks_have_the_bits_of_the_whole_net():
    cut, whole = compiled(Normed(), "mxfp8")
    assert_equal(train(cut), train(whole))
    with torch.no_grad():
        assert torch.equal(cut(tokens()), whole(tokens()))
    assert_same_net(cut, whole)
    # Twice: with gradients and without.
    assert (distinct(cut), distinct(whole)) == (10, 2)


class Tied(Gpt):
    """A base whose product is in a method that others reach in ways of their own."""

    def __init__(self):
        super().__init__()
        self.multiply = functional.linear
        self.listed = {"blocks": list(self.blocks)}

    def cut(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, tokens):
        return functional.linear(self.cut(tokens), self.embedding.weight)


class TiedBySuper(Tied):
    def forward(self, tokens):
        return super().forward(tokens) * 2


class TiedByStaticMethod(Tied):
    @staticmethod
    def score(x, weight):
        return x @ weight.T

    def forward(self, tokens):
        return self.score(self.cut(tokens), self.embedding.weight)


class TiedByProperty(Tied):
    @property
    def scores(self):
        return lambda x: x @ self.embedding.weight.T

    def forward(self, tokens):
        return self.scores(self.cut(tokens))


class TiedByAttribute(Tied):
    def forward(self, tokens):
        return self.multiply(self.cut(tokens), self.embedding.weight)


def doubled(forward):
    def double(self, tokens):
        return forward(self, tokens) * 2

    return double


class TiedInWrapper(Tied):
    @doubled
    def forward(self, tokens):
        return self.cut(tokens) @ self.embedding.weight.T


class CallsChildren(Gpt):
    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks.children():
            x = block(x)
        return self.head(x)


class CallsListed(Tied):
    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.listed["blocks"]:
            x = block(x)
        return self.head(x)


@pytest.mark.every(7)
@pytest.mark.parametrize(
    "model_class",
    [TiedBySuper, TiedByStaticMethod, TiedByProperty, TiedByAttribute, TiedInWrapper, CallsChildren, CallsListed],
)
def test_every_product_of_a_model_is_quantized(model_class):
    net = steelyard.compile(model_class(), "mxfp8")
    net(tokens())
    rows = [
        row for row in net.explain().rows if row.kind == "fprop" and row.K == "48" and "attention" not in row.kernel
    ]
    assert len(rows) > DEPTH
    assert [row.layer for row in rows if not row.is_quantized] == []


def test_a_product_around_blocks_that_were_asked_for_has_a_row():
    class Tied(Gpt):
        def forward(self, tokens):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            return x @ self.embedding.weight.T

    net = steelyard.compile(Tied(), "mxfp8", blocks=["blocks"])
    net(tokens())
    (row,) = [row for row in net.explain().rows if row.kind == "fprop" and not row.is_quantized]
    assert (row.layer, row.N, row.K) == ("", str(VOCABULARY), "48")
    assert "around the blocks" in row.reason
    assert "blocks=False" in row.reason


def test_a_product_that_nobody_could_foresee_is_named():
    class Hidden(Gpt):
        def forward(self, tokens):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            return getattr(torch, "mat" + "mul")(self.head(x), torch.ones(VOCABULARY, 3))

    net = steelyard.compile(Hidden(), "mxfp8")
    with pytest.warns(steelyard.errors.SteelyardWarning, match="around the blocks.*blocks=False"):
        net(tokens())


class ByName(Gpt):
    def forward(self, tokens):
        named = dict(self.named_children())
        return named["head"](named["blocks"](named["embedding"](tokens)))


class ByList(Gpt):
    """Keeps its blocks in a list of Python's, too, of which a net has no parts."""

    def __init__(self):
        super().__init__(dropout=0.2)
        self.kept = [*self.blocks, self.head]

    def forward(self, tokens):
        x = nn.functional.dropout(self.embedding(tokens), 0.2, self.training)
        for module in self.kept:
            x = module(x)
        return x


@pytest.mark.every(2)
@pytest.mark.parametrize("make_model", [lambda: ByName(container=nn.Sequential), ByList])
def test_modules_that_are_reached_past_the_net_are_captured(make_model):
    model = make_model()
    nets = [steelyard.compile(model, "fp8-delayed", blocks=blocks) for blocks in ("auto", False)]
    results = []
    for net in nets:
        torch.manual_seed(2)
        results.append([net(tokens()), net(tokens())])
    assert_equal(*results)
    assert_same_net(*nets)
    assert distinct(nets[0]) == 1
    assert sum(row.is_quantized for row in nets[0].explain().rows if row.kind == "fprop") == 4 * DEPTH + 1


def test_few_blocks_are_captured_as_a_whole(monkeypatch):
    monkeypatch.setattr(blocks, "FEWEST", 4)
    net = steelyard.compile(Gpt(3), "mxfp8")
    net(tokens())
    assert distinct(net) == 1
    named = steelyard.compile(Gpt(3), "mxfp8", blocks=["blocks"])
    named(tokens())
    assert distinct(named) == 2


@pytest.mark.parametrize("wrong", [True, 4, "blocks", [], [3], None])
def test_blocks_must_be_named_by_a_list(wrong):
    with pytest.raises(RecipeError, match='blocks must be "auto", False, or a list'):
        steelyard.compile(Gpt(), "mxfp8", blocks=wrong)


@pytest.mark.parametrize("name", ["block", "blocks.0", "head", ""])
def test_blocks_must_be_in_a_container(name):
    with pytest.raises(UnsupportedModelError, match=r"must name a ModuleList.*the model has blocks"):
        steelyard.compile(Gpt(), "mxfp8", blocks=[name])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["fp8-delayed", "nvfp4"])
def test_a_gpt_of_48_layers(recipe):
    cut, whole = compiled(Gpt(48), recipe)
    assert_equal(train(cut), train(whole))
    assert_same_net(cut, whole)
    assert (distinct(cut), distinct(whole)) == (2, 1)
    assert len([row for row in cut.explain().rows if row.kind == "wgrad"]) == 48 * 4 + 1
