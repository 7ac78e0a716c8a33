"""`steelyard tune`: what it writes is what `steelyard.tune` makes, in each format, and errors say what to do."""

import json

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
from steelyard.recipes import MixedRecipe
from steelyard.tools.cli import main
from steelyard.tuning import calibration

WORDS = [f"word{number}" for number in range(tiny_models.VOCABULARY)]
FORMATS = ["nvfp4-4over6/none", "mxfp8"]
FLAGS = ["--length", "8", "--tokens", "64", "--formats", *FORMATS]


@pytest.fixture
def folder(tmp_path):
    """A plain checkpoint with a tokenizer of whole words, and a text of 80 of them."""
    made = tmp_path / "plain"
    made.mkdir()
    small_folders.write_folder(made, {kind.name: kind for kind in small_folders.KINDS}["plain"])
    tokenizer = Tokenizer(models.WordLevel({word: token for token, word in enumerate(WORDS)}, unk_token="word0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="word0").save_pretrained(made)
    (tmp_path / "text.txt").write_text(" ".join(f"word{7 * number % tiny_models.VOCABULARY}" for number in range(80)))
    return made


def tuned_here(folder):
    catalog = read_catalog(folder)
    tokens = torch.tensor([7 * number % tiny_models.VOCABULARY for number in range(64)]).reshape(8, 8)
    model = load_model(catalog, read_plan(catalog), torch.float32)
    return steelyard.tune(model, tokens.split(4), bits=6, formats=FORMATS)


def test_what_is_written_is_what_was_tuned(folder, tmp_path, capsys):
    model, recipe = tuned_here(folder)
    for format in ("steelyard", "compressed-tensors"):
        out = tmp_path / format
        flags = ["--bits", "6", "--text", str(tmp_path / "text.txt"), "--format", format, *FLAGS]
        assert main(["tune", str(folder), str(out), *flags]) == 0
        printed = capsys.readouterr().out
        assert "chosen, compensated" in printed
        assert MixedRecipe.from_dict(json.loads((out / "steelyard_recipe.json").read_text())) == recipe
        loaded = dict(steelyard.load(out).named_parameters())
        for name, parameter in model.named_parameters():
            ours, theirs = (each.dequantize().float() for each in (loaded[name], parameter))
            assert torch.equal(ours, theirs), name


def test_a_tuned_checkpoint_writes_text(folder, tmp_path, capsys):
    out = tmp_path / "out"
    goal = ["--bits", "6", "--share", "mxfp8=0.3", "--costs", "sm_100a", "--speed", "0.1", "--fold"]
    assert main(["tune", str(folder), str(out), *goal, "--text", str(tmp_path / "text.txt"), *FLAGS]) == 0
    assert "not counted: " in capsys.readouterr().out
    about = json.loads((out / "steelyard_recipe.json").read_text())["about"]
    assert about["goal"] == {"bits": 6.0, "speed": 0.1, "share": {"mxfp8": 0.3}}
    assert about["costs"]["target"] == "sm_100a"
    assert not (tmp_path / "out.unfinished").exists()
    assert main(["generate", str(out), "word1 word2 word3", "--tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("word")


def test_an_interrupted_command_goes_on(folder, tmp_path, capsys, monkeypatch):
    flags = ["--bits", "6", "--text", str(tmp_path / "text.txt"), *FLAGS]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["tune", str(folder), str(whole), *flags]) == 0
    finish, compensate, again = calibration._Walk._finish, calibration._Walk.compensate, []

    def interrupt(walk, stage):
        finish(walk, stage)
        raise KeyboardInterrupt

    def count(walk, stage, *rest):
        again.append(stage)
        return compensate(walk, stage, *rest)

    monkeypatch.setattr(calibration._Walk, "_finish", interrupt)
    assert main(["tune", str(folder), str(parts), *flags]) == 130
    assert not parts.exists()
    assert len(list(tmp_path.glob("parts.unfinished/*/*/*.pt"))) == 1
    monkeypatch.setattr(calibration._Walk, "_finish", finish)
    monkeypatch.setattr(calibration._Walk, "compensate", count)
    assert main(["tune", str(folder), str(parts), *flags]) == 0
    # The only block of the model was finished.
    assert not again
    capsys.readouterr()
    ours, theirs = (dict(steelyard.load(each).named_parameters()) for each in (parts, whole))
    assert all(torch.equal(parameter.dequantize(), theirs[name].dequantize()) for name, parameter in ours.items())


def test_errors_say_what_to_do(folder, tmp_path, capsys):
    text = ["--text", str(tmp_path / "text.txt")]
    out = str(tmp_path / "out")
    assert main(["tune", str(folder), out, *text, *FLAGS]) == 2
    assert "a goal must be given" in capsys.readouterr().err
    assert main(["tune", str(folder), out, "--share", "mxfp8", *text, *FLAGS]) == 2
    assert "--share must be like nvfp4-4over6=0.5, got mxfp8" in capsys.readouterr().err
    assert main(["tune", str(folder), out, "--bits", "3", *text, *FLAGS]) == 2
    assert "bits must be at least 4.5" in capsys.readouterr().err
    assert main(["tune", str(folder), out, "--bits", "5", *text, "--length", "100"]) == 2
    assert "the text must have at least --length 100 tokens, got 80" in capsys.readouterr().err
    assert main(["tune", str(folder), out, "--bits", "5", "--text", str(tmp_path / "none.txt"), *FLAGS]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
