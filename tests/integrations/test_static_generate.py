"""`generate` with a static cache: steps that are alike run without torch's checks, and notice what changes."""

import dataclasses
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from architectures import TEXT_DECODERS
from small_llama import make_small_llama
from torch.nn.modules.module import register_module_forward_hook
from transformers import LogitsProcessor, LogitsProcessorList, MistralConfig, MistralForCausalLM, StaticCache

import steelyard
from steelyard.driver import decoding

pytestmark = pytest.mark.usefixtures("with_tapes")

OPTIONS = {"do_sample": False, "cache_implementation": "static", "max_new_tokens": 8}


def counted_calls(monkeypatch, name):
    """A list with an entry for each call of a method of `Decoding`."""
    counts = []
    run = getattr(decoding.Decoding, name)

    def counted(self, *arguments):
        counts.append(1)
        return run(self, *arguments)

    monkeypatch.setattr(decoding.Decoding, name, counted)
    return counts


@pytest.fixture
def recorded(monkeypatch):
    """Counts the steps that run as any call of the whole net does."""
    return counted_calls(monkeypatch, "_record")


@pytest.fixture
def traced(monkeypatch):
    """Counts the steps that run as calls of blocks."""
    return counted_calls(monkeypatch, "_trace")


def without_freezing(monkeypatch):
    """Steps of `generate` are calls like any others."""
    monkeypatch.setattr(decoding, "_cache_of", lambda *_: None)


class Between(LogitsProcessor):
    """Calls a function after each step, with its number."""

    def __init__(self, function):
        self.function, self.steps = function, 0

    def __call__(self, input_ids, scores):
        self.steps += 1
        self.function(self.steps)
        return scores


def prompt():
    return torch.tensor([[3, 7, 11, 5], [2, 9, 4, 6]])


@pytest.mark.every(2)
@pytest.mark.parametrize("layers", [1, 4])
def test_tokens_logits_and_caches_are_those_of_plain_calls(layers, recorded, monkeypatch):
    model = make_small_llama(num_hidden_layers=layers)
    net = steelyard.compile(model, "nvfp4", blocks=False)
    options = OPTIONS | {"output_logits": True, "return_dict_in_generate": True}
    found = net.generate(prompt(), **options)
    assert len(recorded) == 2, "the third step and later ones are like the second"
    again = net.generate(prompt(), **options)
    assert len(recorded) == 4
    with monkeypatch.context() as patch:
        without_freezing(patch)
        expected = steelyard.compile(model, "nvfp4", blocks=False).generate(prompt(), **options)
    assert torch.equal(found.sequences, expected.sequences)
    assert torch.equal(again.sequences, expected.sequences)
    pairs = [*zip(found.logits, expected.logits, strict=True)]
    for one, other in zip(found.past_key_values.layers, expected.past_key_values.layers, strict=True):
        pairs += [(one.keys, other.keys), (one.values, other.values)]
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.slow
def test_a_net_in_blocks_is_captured_as_a_whole_when_its_steps_took_long(recorded, monkeypatch):
    model = make_small_llama(num_hidden_layers=4)
    # Whose values are looked at between kernels, so that no block is one tape.
    net = steelyard.compile(model, "nvfp4", check_finite=True)
    options = OPTIONS | {"output_logits": True, "return_dict_in_generate": True}
    net.generate(prompt(), **options)
    in_blocks = net.generate(prompt(), **options)
    state = net._steelyard
    assert not recorded
    assert state.traced_steps is None
    assert 0 < state.seconds_in_steps < state.backend.seconds_to_capture()
    state.seconds_in_steps = state.backend.seconds_to_capture()
    whole = net.generate(prompt(), **options)
    assert len(recorded) == 2, "the third step and later ones are like the second"
    # What blocks fuse is what the whole model fuses, but for the first and the last norm.
    assert torch.equal(whole.sequences, in_blocks.sequences)
    for one, other in zip(whole.logits, in_blocks.logits, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        model.lm_head.weight.neg_()
    expected = steelyard.compile(model, "nvfp4", blocks=False).generate(prompt(), **options)
    assert torch.equal(net.generate(prompt(), **options).sequences, expected.sequences)
    assert len(recorded) == 6, "two of each call, and two of the other net"


def test_steps_of_blocks_are_a_program_of_calls(traced, recorded):
    model = make_small_llama(num_hidden_layers=4)
    options = OPTIONS | {"output_logits": True, "return_dict_in_generate": True}
    net = steelyard.compile(model, "nvfp4")
    found = net.generate(prompt(), **options)
    assert len(traced) == 3, "the first step compiles the blocks, and the fourth is like the third"
    kept = net.memory()["workspace"]
    again = net.generate(prompt(), **options)
    assert net.memory()["workspace"] == kept
    assert len(traced) == 5
    assert len(net._steelyard.traced_steps.known) == 1, "another cache runs the same program"
    assert not recorded
    whole = steelyard.compile(model, "nvfp4", blocks=False).generate(prompt(), **options)
    for one in (found, again):
        assert torch.equal(one.sequences, whole.sequences)
        assert torch.equal(one.logits[-1], whole.logits[-1])
        for own, other in zip(one.past_key_values.layers, whole.past_key_values.layers, strict=True):
            assert torch.equal(own.keys, other.keys)
            assert torch.equal(own.values, other.values)
            assert own.get_seq_length() == other.get_seq_length() == 11


ONE_TAPE = {
    "gpt2, transposed weights": {"n_layer": 4},
    "opt": {},
    "gpt neox, parallel residual": {},
    "phi, parallel attention and MLP": {},
    "starcoder2": {},
    "cohere, parallel block": {},
}
"""Decoders whose blocks and last norms are one tape each in a decoding step, and how their layers are counted."""


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ONE_TAPE)
def test_steps_of_decoders_are_a_program_with_the_bits_of_python(name, monkeypatch):
    decoder = TEXT_DECODERS[name]
    counted = ONE_TAPE[name] or {"num_hidden_layers": 4}
    decoder = dataclasses.replace(decoder, sizes=decoder.sizes | counted | {"eos_token_id": None})
    options = OPTIONS | {"output_logits": True, "return_dict_in_generate": True}
    net = steelyard.compile(decoder.make()[0], "mxfp8")
    found = net.generate(prompt(), **options)
    assert len(net._steelyard.traced_steps.known) == 1
    with monkeypatch.context() as patch:
        patch.setenv("STEELYARD_TAPE", "0")
        expected = steelyard.compile(decoder.make()[0], "mxfp8").generate(prompt(), **options)
    assert torch.equal(found.sequences, expected.sequences)
    assert all(map(torch.equal, found.logits, expected.logits))


def test_what_differs_in_another_net_is_no_input_of_blocks():
    for epsilon, tokens in ((1e-6, 2), (1e-5, 3)):
        net = steelyard.compile(make_small_llama(num_hidden_layers=4, rms_norm_eps=epsilon), "mxfp8")
        with torch.no_grad():
            net(prompt()[:, :tokens])
        fused = net.ir("fused")
        assert "f64" not in fused
        assert "?" not in fused


def test_steps_after_others_with_a_growing_cache_are_a_program_too(traced, recorded):
    model = make_small_llama(num_hidden_layers=4)
    net = steelyard.compile(model, "mxfp8")
    options = {"do_sample": False, "max_new_tokens": 8, "output_logits": True, "return_dict_in_generate": True}
    growing = net.generate(prompt(), **options)
    assert "?" in net.ir("traced")
    static = net.generate(prompt(), cache_implementation="static", **options)
    assert len(net._steelyard.traced_steps.known) == 1
    assert len(traced) <= 3
    assert not recorded
    assert torch.equal(static.sequences, growing.sequences)
    torch.testing.assert_close(static.logits, growing.logits, rtol=1e-5, atol=1e-6)


def test_weights_that_were_written_do_not_live_on_in_programs_of_steps():
    model = make_small_llama(num_hidden_layers=4)
    net = steelyard.compile(model, "mxfp8")
    net.generate(prompt(), **OPTIONS)
    (known,) = net._steelyard.traced_steps.known
    parts = [weakref.ref(part) for part in known.program.held]
    assert len(parts) >= 4 * 7
    steps, kept = known.program.nbytes(), net.memory()["workspace"]
    assert 0 < steps < kept
    del known
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
        net(prompt())
    assert not [part for part in parts if part() is not None]
    assert not net._steelyard.traced_steps.known


@pytest.mark.every(2)
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}], ids=["growing", "static"])
def test_steps_are_measured(options):
    net = steelyard.compile(make_small_llama(num_hidden_layers=4), "mxfp8")
    with net.measure(every=3) as measured:
        net.generate(prompt(), do_sample=False, max_new_tokens=8, **options)
    assert measured.result.steps == 3
    assert len({row.layer for row in measured.result.rows if row.layer.endswith("_proj")}) == 4 * 7


@pytest.mark.every(4)
@pytest.mark.parametrize("change", ["norm", "written", "replaced", "data"])
def test_a_weight_of_a_block_that_changes_between_steps_is_noticed(change, traced, monkeypatch):
    def generate():
        torch.manual_seed(0)
        model = make_small_llama(num_hidden_layers=4)
        net = steelyard.compile(model, "mxfp8")
        layer = model.model.layers[2]

        def alter(step):
            if step != 5:
                return
            with torch.no_grad():
                if change == "written":
                    layer.mlp.up_proj.weight.mul_(-30)
                elif change == "replaced":
                    layer.mlp.up_proj.weight = torch.nn.Parameter(layer.mlp.up_proj.weight * -30)
                elif change == "data":
                    layer.mlp.up_proj.weight.data = layer.mlp.up_proj.weight * -30
                else:
                    layer.input_layernorm.weight.data = layer.input_layernorm.weight * -30

        options = OPTIONS | {"output_logits": True, "return_dict_in_generate": True}
        return net.generate(prompt(), logits_processor=LogitsProcessorList([Between(alter)]), **options).logits

    found = generate()
    assert len(traced) == (5 if change == "replaced" else 4), "the step after the change is traced, too"
    with monkeypatch.context() as patch:
        without_freezing(patch)
        expected = generate()
    assert not torch.allclose(found[4], found[5], rtol=0.1)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.every(2)
@pytest.mark.parametrize("attribute", [False, True])
def test_blocks_that_change_between_calls_of_generate_are_noticed(attribute):
    model = make_small_llama(num_hidden_layers=4)
    net = steelyard.compile(model, "mxfp8")
    net.generate(prompt(), **OPTIONS)
    before = net.generate(prompt(), **OPTIONS)
    if attribute:
        for layer in model.model.layers:
            layer.self_attn.scaling = 30.0
    else:
        # A write that no counter and no sampled word shows.
        model.lm_head.weight.data.neg_()
        net.requantize()
    after = net.generate(prompt(), **OPTIONS)
    assert not torch.equal(before, after)
    assert torch.equal(after, steelyard.compile(model, "mxfp8").generate(prompt(), **OPTIONS))


CHANGES = {
    "written": lambda model: model.model.layers[0].mlp.up_proj.weight.data.mul_(-30),
    "replaced": lambda model: setattr(
        model.lm_head, "weight", torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    ),
    "no weight": lambda model: setattr(model.model.layers[0].self_attn, "scaling", 30.0),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_between_calls_is_noticed(change):
    model = make_small_llama()
    net = steelyard.compile(model, "mxfp8")
    before = net.generate(prompt(), **OPTIONS)
    CHANGES[change](model)
    after = net.generate(prompt(), **OPTIONS)
    assert torch.equal(after, steelyard.compile(model, "mxfp8").generate(prompt(), **OPTIONS))
    assert not torch.equal(before, after)


@pytest.mark.every(2)
@pytest.mark.parametrize("replaces", [False, True])
def test_a_weight_that_changes_between_steps_is_noticed(whole_nets, replaces, recorded, monkeypatch):
    def generate():
        torch.manual_seed(0)
        model = make_small_llama()
        own = torch.randn(model.lm_head.weight.shape, generator=torch.Generator().manual_seed(1))

        def change(step):
            if step == 5 and replaces:
                model.lm_head.weight = torch.nn.Parameter(own)
            elif step == 5:
                with torch.no_grad():
                    model.lm_head.weight.copy_(own)

        net = steelyard.compile(model, "mxfp8")
        return net.generate(prompt(), logits_processor=LogitsProcessorList([Between(change)]), **OPTIONS)

    found = generate()
    assert len(recorded) == (4 if replaces else 2)
    with monkeypatch.context() as patch:
        without_freezing(patch)
        assert torch.equal(found, generate())


@pytest.mark.slow
def test_hooks_run_in_every_step(recorded):
    model = make_small_llama()
    calls = []
    model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    net = steelyard.compile(model, "mxfp8")
    net.generate(prompt(), **OPTIONS)
    assert not recorded
    assert len(calls) == 8


@pytest.mark.parametrize("everywhere", [False, True])
def test_hooks_that_come_between_steps_run(everywhere, monkeypatch):
    """One of a module, and one of all modules."""

    def generate():
        model = make_small_llama(num_hidden_layers=4)
        register = register_module_forward_hook if everywhere else model.lm_head.register_forward_hook
        counts, hooks = [], []

        def add(step):
            if step == 5:
                hooks.append(register(lambda *_: counts.append(1)))

        net = steelyard.compile(model, "mxfp8")
        net.generate(prompt(), **OPTIONS)
        net.generate(prompt(), logits_processor=LogitsProcessorList([Between(add)]), **OPTIONS)
        hooks[0].remove()
        return len(counts)

    found = generate()
    with monkeypatch.context() as patch:
        without_freezing(patch)
        expected = generate()
    assert found == expected >= 3


@pytest.mark.parametrize("layers", [1, 4])
def test_what_a_forward_leaves_in_its_module_is_that_of_the_last_step(layers, monkeypatch):
    class Norm(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.last, self.seen = inner, None, []

        def forward(self, x):
            self.last = self.inner(x)
            self.seen.append(1)
            return self.last

    def generate():
        torch.manual_seed(0)
        model = make_small_llama(num_hidden_layers=layers)
        model.model.norm = Norm(model.model.norm)
        steelyard.compile(model, "mxfp8").generate(prompt(), **OPTIONS)
        return model.model.norm

    found = generate()
    with monkeypatch.context() as patch:
        without_freezing(patch)
        expected = generate()
    torch.testing.assert_close(found.last, expected.last, rtol=1e-5, atol=1e-6)
    assert len(found.seen) == len(expected.seen)


def test_a_beam_search_leaves_programs_of_steps_as_they_are(traced, recorded):
    net = steelyard.compile(make_small_llama(num_hidden_layers=4), "mxfp8")
    net.generate(prompt(), **OPTIONS)
    net.generate(prompt(), num_beams=2, **(OPTIONS | {"max_new_tokens": 20}))
    before = len(traced)
    net.generate(prompt(), **OPTIONS)
    assert len(traced) == before + 2
    assert not recorded


def test_steps_that_are_never_alike_are_plain_calls(traced, monkeypatch):
    """Of a Mistral, a cache counts its tokens in Python."""
    config = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 32}
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 64}
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**sizes, **config)).eval()
    options = OPTIONS | {"max_new_tokens": 16, "output_logits": True, "return_dict_in_generate": True}
    net = steelyard.compile(model, "mxfp8")
    found = [net.generate(prompt(), **options) for _ in range(2)]
    assert len(traced) <= 8
    with monkeypatch.context() as patch:
        without_freezing(patch)
        expected = steelyard.compile(model, "mxfp8").generate(prompt(), **options)
    for one in found:
        assert torch.equal(one.sequences, expected.sequences)
        assert all(map(torch.equal, one.logits, expected.logits))


def test_steps_of_weights_that_are_quantized_are_programs_too(traced, recorded, monkeypatch):
    def generate():
        torch.manual_seed(0)
        net = steelyard.compile(make_small_llama(num_hidden_layers=4), "nvfp4", weights="quantized")

        def alter(step):
            if step == 5:
                weight = net.model.model.layers[2].mlp.up_proj.weight
                getattr(weight, weight.PARTS[0]).zero_()

        first = net.generate(prompt(), **OPTIONS)
        options = OPTIONS | {"output_logits": True, "return_dict_in_generate": True}
        changed = net.generate(prompt(), logits_processor=LogitsProcessorList([Between(alter)]), **options)
        return first, changed.logits

    first, logits = generate()
    assert len(traced) == 3 + 3, "two of the second call, and the one after the change"
    assert not recorded
    with monkeypatch.context() as patch:
        without_freezing(patch)
        expected, plain = generate()
    assert torch.equal(first, expected)
    assert not torch.equal(logits[4], logits[5])
    for one, other in zip(logits, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_tensor_that_is_two_arguments_is_not_taken_for_one():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(40, 48)
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(48, 48) for _ in range(4))

        def forward(self, input_ids, past_key_values, a, b):
            x = self.table(input_ids) + a - 2 * b
            for block in self.blocks:
                x = x + block(x)
            return x

        @torch.no_grad()
        def generate(self, pairs):
            cache = StaticCache(config=make_small_llama().config, max_cache_len=8)
            tokens = torch.zeros(4, 1, dtype=torch.long)
            return [self(input_ids=tokens, past_key_values=cache, a=a, b=b) for a, b in pairs]

    torch.manual_seed(0)
    net = steelyard.compile(Model().eval(), "mxfp8")
    first, second, third = torch.randn(3, 4, 1, 48)
    pairs = [(first, first)] * 4 + [(first, second), (second, third)]
    tokens = torch.zeros(4, 1, dtype=torch.long)
    found = net.generate(pairs)
    with torch.no_grad():
        expected = [net(input_ids=tokens, past_key_values=None, a=a, b=b) for a, b in pairs]
    assert all(map(torch.equal, found, expected))


@pytest.mark.slow
def test_other_calls_are_left_alone(recorded):
    model = make_small_llama()
    net = steelyard.compile(model, "mxfp8")
    dynamic = net.generate(prompt(), do_sample=False, max_new_tokens=4)
    assert dynamic.shape == (2, 8)
    net.generate(prompt(), num_beams=2, **OPTIONS)
    with torch.no_grad():
        net(prompt()[:, :1])
    assert torch.equal(net.generate(prompt(), **OPTIONS)[:, :8], dynamic)


@pytest.mark.parametrize("layers", [1, 4])
def test_threads(layers):
    model = make_small_llama(num_hidden_layers=layers)
    net = steelyard.compile(model, "nvfp4")
    prompts = [torch.tensor([[first, 7, 11]]) for first in range(4)]
    expected = [net.generate(one, **OPTIONS) for one in prompts]

    def generate(number):
        return torch.equal(net.generate(prompts[number % 4], **OPTIONS), expected[number % 4])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(generate, range(24)))


def test_threads_may_take_the_first_steps():
    model = make_small_llama(num_hidden_layers=4)
    prompts = [torch.tensor([[first, 7, 11]]) for first in range(4)]
    expected = [steelyard.compile(model, "mxfp8").generate(one, **OPTIONS) for one in prompts]
    net = steelyard.compile(model, "mxfp8")
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda number: net.generate(prompts[number % 4], **OPTIONS), range(8))]
    assert all(torch.equal(tokens, expected[number % 4]) for number, tokens in enumerate(found))
