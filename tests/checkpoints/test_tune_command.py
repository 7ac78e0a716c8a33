"""`steelyard tune`: what it writes is what `steelyard.tune` makes, in each format, and errors say what to do."""

import json
import re

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
from steelyard.tuning import calibration, costs

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


def test_a_folder_of_the_user_stays(folder, tmp_path, capsys):
    flags = ["--bits", "6", "--text", str(tmp_path / "text.txt"), *FLAGS]
    precious = tmp_path / "out.unfinished" / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("mine")
    command = ["tune", str(folder), str(tmp_path / "out"), *flags]
    assert main(command) == 2
    assert "must be made by this command, and holds other things, such as precious.txt; move it" in (
        capsys.readouterr().err
    )
    assert precious.read_text() == "mine"
    assert not (tmp_path / "out").exists()
    # In a folder that the command did make, what others put there stays, too.
    precious.unlink()
    finish = calibration._Walk._finish

    def put(walk, stage):
        finish(walk, stage)
        precious.write_text("mine")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration._Walk, "_finish", put)
        assert main(command) == 0
    assert "out.unfinished: kept, for it holds other things" in capsys.readouterr().out
    assert [each.name for each in precious.parent.iterdir()] == ["precious.txt"]


def test_a_folder_without_a_name_is_refused(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (".", "/"):
        assert main(["tune", str(folder), name, "--bits", "6", *FLAGS]) == 2
        assert f"OUT must be a new folder with a name of its own, got '{name}'" in capsys.readouterr().err
    work = tmp_path / "file"
    work.touch()
    assert main(["tune", str(folder), "out", "--work", str(work), "--bits", "6", *FLAGS]) == 2
    assert "where finished layers are kept, must be a folder, and is none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "a goal must be given, and none was: --bits 5"),
        (["--bits", "0"], "--bits must be a positive number, got 0.0"),
        (["--speed", "nan"], "--speed must be a positive number, got nan"),
        (["--bits", "3"], "--bits must be at least 4.25 with the formats nvfp4-4over6, nvfp4-4over6/mxfp8, "),
        (["--bits", "5", "--formats", "nvfp5"], "recipe must be a recipe object or one of"),
        (["--share", "fp8=0.5"], "--share must name some of --formats, nvfp4-4over6, nvfp4-4over6/mxfp8, "),
        (["--share", "mxfp8=0.7", "--share", "fp8-row=0.7"], "--share must have parts above 0 and at most 1 in all"),
        (["--bits", "5", "--costs", "sm_80"], "costs must be a table, a file with one, or one of cpu, "),
        (
            ["--bits", "5", "--format", "modelopt", "--formats", "nvfp4-4over6", "mxfp8", "none"],
            "--format modelopt must hold all of --formats, and cannot hold nvfp4-4over6; leave them out, choose among "
            "nvfp4-4over6/none mxfp8 fp8-row none, or write another format",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_model_is_loaded(folder, tmp_path, capsys, flags, message):
    # A model that is no model: whoever reads it has an error of another kind.
    (folder / "model.safetensors").write_bytes(b"")
    assert main(["tune", str(folder), str(tmp_path / "out"), *flags]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert "loading" not in printed.out
    assert not (tmp_path / "out.unfinished").exists()


def test_what_a_format_of_files_holds_is_what_it_writes(folder, tmp_path, capsys):
    """Left to itself, the command chooses among what the format holds, and writes it."""
    out = tmp_path / "out"
    text = ["--text", str(tmp_path / "text.txt"), "--length", "8", "--tokens", "64"]
    assert main(["tune", str(folder), str(out), "--bits", "6", "--format", "modelopt", *text]) == 0
    tried = [each["formats"] for each in json.loads((out / "steelyard_recipe.json").read_text())["about"]["tried"]]
    assert tried == ["nvfp4-4over6/none", "mxfp8", "fp8-row", "chosen", "chosen, compensated"]
    assert json.loads((out / "hf_quant_config.json").read_text())["producer"]["name"] == "steelyard"


def test_the_help_names_every_table_of_costs(capsys):
    with pytest.raises(SystemExit):
        main(["tune", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    names = re.search(r"--costs TARGET (.*), or a file", printed)[1].split(", ")
    assert sorted(names) == sorted(["cpu", *costs.shipped()])


def test_errors_say_what_to_do(folder, tmp_path, capsys):
    text = ["--text", str(tmp_path / "text.txt")]
    out = str(tmp_path / "out")
    assert main(["tune", str(folder), out, "--share", "mxfp8", *text, *FLAGS]) == 2
    assert "--share must be like nvfp4-4over6=0.5, got mxfp8" in capsys.readouterr().err
    assert main(["tune", str(folder), out, "--bits", "5", *text, "--length", "100"]) == 2
    assert "the text must have at least --length 100 tokens, got 80" in capsys.readouterr().err
    assert main(["tune", str(folder), out, "--bits", "5", "--text", str(tmp_path / "none.txt"), *FLAGS]) == 2
    assert "cannot read" in capsys.readouterr().err
    (folder / "tokenizer.json").unlink()
    assert main(["tune", str(folder), out, "--bits", "5", *text, *FLAGS]) == 2
    assert "must have a tokenizer to read the text for calibration, such as tokenizer.json" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
