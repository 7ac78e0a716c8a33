"""`generate` of transformers with padding and with an assistant model."""

import pytest
import torch
from small_llama import make_small_llama
from transformers import LlamaForCausalLM

import steelyard


def make_llama(seed: int = 0) -> LlamaForCausalLM:
    """Grouped-query attention: four heads share two keys and values."""
    torch.manual_seed(seed)
    return make_small_llama(vocab_size=97, eos_token_id=None, pad_token_id=0).eval()


@pytest.fixture(scope="module")
def llama():
    return make_llama()


@pytest.mark.slow
def test_left_padding(llama):
    """A prompt in a padded batch continues as it does alone."""
    net = steelyard.compile(llama, "mxfp8")
    torch.manual_seed(1)
    short, long = torch.randint(1, 97, (5,)), torch.randint(1, 97, (9,))
    ids = torch.stack([torch.cat([torch.zeros(4, dtype=torch.long), short]), long])
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    padded = net.generate(ids, attention_mask=mask, **options)
    for row, prompt in zip(padded, (short, long), strict=True):
        alone = net.generate(prompt[None], attention_mask=torch.ones(1, len(prompt), dtype=torch.long), **options)
        assert row[-3:].tolist() == alone[0, -3:].tolist()
    rows = [row for row in net.explain().rows if row.weight]
    assert rows
    assert all(row.is_quantized for row in rows)


@pytest.mark.slow
def test_assistant_model(llama):
    """Speculative decoding gives the tokens of greedy decoding, whatever the assistant proposes."""
    net = steelyard.compile(llama, "mxfp8")
    assistant = steelyard.compile(make_llama(seed=2), "mxfp8")
    ids = torch.randint(1, 97, (1, 6), generator=torch.Generator().manual_seed(3))
    options = {"max_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones_like(ids), "pad_token_id": 0}
    expected = net.generate(ids, **options)
    assert torch.equal(net.generate(ids, assistant_model=assistant, **options), expected)
    assert all(row.is_quantized for row in assistant.explain().rows if row.weight)
