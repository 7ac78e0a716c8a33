"""`steelyard generate`: the text is that of the likeliest tokens, one after the other."""

import pytest
import small_folders
import tiny_models
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import steelyard
from steelyard.checkpoints.catalog import read_catalog
from steelyard.checkpoints.loading import load_model
from steelyard.checkpoints.methods.choice import read_plan
from steelyard.tools.cli import main

WORDS = ["unknown", "the", "steel", "yard", *(f"word{number}" for number in range(tiny_models.VOCABULARY - 4))]
KINDS = {kind.name: kind for kind in small_folders.KINDS}


@pytest.fixture
def folder(tmp_path):
    """A plain checkpoint with a tokenizer of whole words."""
    small_folders.write_folder(tmp_path, KINDS["plain"])
    tokenizer = Tokenizer(models.WordLevel({word: token for token, word in enumerate(WORDS)}, unk_token="unknown"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="unknown").save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def eager(folder, monkeypatch):
    """The model of the folder as it is, which the command gets instead of a compiled net."""
    catalog = read_catalog(folder)
    model = load_model(catalog, read_plan(catalog))
    given = []
    monkeypatch.setattr(steelyard, "load", lambda *args, **options: given.append((args, options)) or model)
    return model, given


def likeliest(model, tokens, count):
    """Tokens by whole calls of the model, without a cache."""
    for _ in range(count):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens


def test_the_likeliest_words_are_printed(folder, eager, capsys):
    model, given = eager
    assert main(["generate", str(folder), "the steel yard", "--tokens", "6", "--dtype", "bfloat16"]) == 0
    captured = capsys.readouterr()
    expected = likeliest(model, [1, 2, 3], 6)[3:]
    # The tokenizer leaves out its token for unknown words.
    assert captured.out.split() == [WORDS[token] for token in expected if token]
    assert captured.err.startswith("6 tokens, ")
    assert "tokens/s" in captured.err
    assert given == [((str(folder),), {"recipe": None, "dtype": torch.bfloat16})]


def test_drawn_words_depend_on_the_seed(folder, eager, capsys):
    def draw(seed):
        flags = ["--tokens", "8", "--temperature", "100", "--seed", str(seed)]
        assert main(["generate", str(folder), "the", *flags]) == 0
        return capsys.readouterr().out

    assert draw(1) == draw(1) != draw(2)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--tokens", "0"], "--tokens must be at least 1"),
        (["--temperature", "-1"], "--temperature must be above 0"),
        (["--seed", str(2**64)], "--seed must have at most 64 bits"),
    ],
)
def test_wrong_options_are_refused(flags, text, folder, capsys):
    assert main(["generate", str(folder), "the", *flags]) == 2
    assert text in capsys.readouterr().err


def test_a_folder_without_a_tokenizer_is_refused(tmp_path, capsys):
    small_folders.write_folder(tmp_path, KINDS["plain"])
    assert main(["generate", str(tmp_path), "the"]) == 2
    assert "must have a tokenizer to read the prompt, such as tokenizer.json, and has none" in capsys.readouterr().err


def test_a_tokenizer_of_another_model_is_refused(folder, eager, capsys):
    text = (folder / "tokenizer.json").read_text().replace('"steel": 2', '"steel": 2000')
    (folder / "tokenizer.json").write_text(text)
    assert main(["generate", str(folder), "the steel"]) == 2
    assert "must have the model's 48 tokens, got token 2000" in capsys.readouterr().err


def test_an_interruption_ends_it(folder, eager, monkeypatch, capsys):
    model, _ = eager

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "generate", interrupted)
    assert main(["generate", str(folder), "the"]) == 130
    assert capsys.readouterr().err == "steelyard generate: interrupted\n"
