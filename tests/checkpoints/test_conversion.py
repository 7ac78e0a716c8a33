"""Plain checkpoints into quantized ones: values, formats, interruptions."""

import json
from pathlib import Path

import pytest
import torch
from published import bf16_llama, compressed_values, modelopt_values
from safetensors.torch import load_file

import steelyard
from steelyard.checkpoints.conversion import convert
from steelyard.errors import CheckpointError
from steelyard.tools.cli import main

IDS = torch.arange(16).reshape(1, 16)
WEIGHT = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    bf16_llama().save_pretrained(tmp_path / "plain", max_shard_size="200KB")
    return tmp_path / "plain"


def loaded_weight(folder: Path, dtype: torch.dtype) -> torch.Tensor:
    return steelyard.load(folder).get_parameter(WEIGHT).dequantize(dtype=dtype)


def join(folder: Path) -> None:
    """Put the tensors of several files into one, as the readers of other programs are called here."""
    from safetensors.torch import save_file

    tensors = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    for file in (*folder.glob("*.safetensors"), folder / "model.safetensors.index.json"):
        file.unlink()
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("recipe", ["nvfp4/none", "mxfp8", "fp8-row", "fp8-block", "fp8-current", "mxfp4/mxfp8"])
def test_compressed_tensors_reads_what_is_converted_to_it(recipe: str, plain: Path, tmp_path: Path):
    list(convert(plain, tmp_path / "out", recipe))
    found = loaded_weight(tmp_path / "out", torch.bfloat16)
    join(tmp_path / "out")
    assert torch.equal(found, compressed_values(tmp_path / "out")[WEIGHT].to(torch.bfloat16))


@pytest.mark.parametrize("recipe", ["mxfp8", "fp8-row", "mxfp4"])
def test_modelopt_reads_what_is_converted_to_it(recipe: str, plain: Path, tmp_path: Path):
    list(convert(plain, tmp_path / "out", recipe, format="modelopt"))
    found = loaded_weight(tmp_path / "out", torch.float32)
    join(tmp_path / "out")
    assert torch.equal(found, modelopt_values(tmp_path / "out")[WEIGHT])


def test_a_saved_net_gives_the_same_results(tmp_path: Path):
    model = bf16_llama()
    net = steelyard.compile(model, "mxfp8", overrides={"lm_head": None})
    with torch.no_grad():
        expected = net(IDS).logits
    for format in ("compressed-tensors", "modelopt", "steelyard"):
        steelyard.save(net, tmp_path / format, format=format)
        again = steelyard.load(tmp_path / format)
        with torch.no_grad():
            # The buffers of the model were rounded to bf16, those of the loaded one are not in any file.
            again.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq
            assert torch.equal(again(IDS).logits, expected), format


def test_four_over_six_is_kept_in_files(plain: Path, tmp_path: Path):
    """Blocks may map their amax to 4: the error to the plain weight is smaller than without."""
    exact = bf16_llama().get_parameter(WEIGHT).detach().float()
    errors = {}
    for recipe in ("nvfp4/none", "nvfp4-4over6/none"):
        folder = tmp_path / recipe.partition("/")[0]
        list(convert(plain, folder, recipe))
        errors[recipe] = float((loaded_weight(folder, torch.float32) - exact).norm())
    assert errors["nvfp4-4over6/none"] < 0.97 * errors["nvfp4/none"]


def test_a_conversion_goes_on_after_an_interruption(plain: Path, tmp_path: Path):
    steps = convert(plain, tmp_path / "out", "mxfp8")
    unfinished = tmp_path / "out.unfinished"
    while len(list(unfinished.glob("*.safetensors"))) < 2:
        next(steps)
    steps.close()
    assert not (tmp_path / "out").exists()
    first = min(unfinished.glob("*.safetensors"))
    written = first.stat().st_mtime_ns
    list(convert(plain, tmp_path / "out", "mxfp8"))
    assert (tmp_path / "out" / first.name).stat().st_mtime_ns == written
    assert not unfinished.exists()
    list(convert(plain, tmp_path / "whole", "mxfp8"))
    for file in (tmp_path / "whole").glob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "out" / file.name).read_bytes()


def test_another_conversion_is_not_gone_on_with(plain: Path, tmp_path: Path):
    steps = convert(plain, tmp_path / "out", "mxfp8")
    next(steps)
    steps.close()
    with pytest.raises(CheckpointError, match="unfinished conversion of something else"):
        list(convert(plain, tmp_path / "out", "fp8-row"))


def test_what_is_ignored_stays_as_it_is(plain: Path, tmp_path: Path):
    ignored = ["--ignore", "lm_head", "--ignore", "*.mlp.*"]
    assert main(["convert", str(plain), str(tmp_path / "out"), "--recipe", "fp8-row", *ignored]) == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert "model.layers.0.mlp.down_proj" in config["ignore"]
    before, after = (
        {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}
        for folder in (plain, tmp_path / "out")
    )
    assert torch.equal(before[WEIGHT], after[WEIGHT])
    assert after["model.layers.0.self_attn.q_proj.weight"].dtype == torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipe", "nvfp4", "--format", "modelopt"], "must have a static scale of its input"),
        (["--recipe", "mxfp8", "--format", "fp8"], "choose the recipe fp8-block"),
        (["--recipe", "mxfp9"], "did you mean 'mxfp8'"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(arguments, message, plain: Path, tmp_path: Path, capsys):
    assert main(["convert", str(plain), str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_not_written(plain: Path, capsys):
    assert main(["convert", str(plain), str(plain), "--recipe", "mxfp8"]) == 2
    assert "must not exist or be an empty folder" in capsys.readouterr().err
