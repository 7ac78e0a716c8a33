"""Plain checkpoints into quantized ones: values, formats, interruptions."""

import json
from pathlib import Path

import pytest
import torch
from published import bf16_llama, compressed_values, modelopt_values
from safetensors.torch import load_file

import steelyard
from steelyard.checkpoints.conversion import convert
from steelyard.errors import CheckpointError, RecipeError
from steelyard.recipes import NVFP4BlockScaling
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


@pytest.mark.every(2)
@pytest.mark.parametrize(("recipe", "algorithm"), [("fp8-current", "FP8"), ("nvfp4", "NVFP4")])
def test_modelopt_reads_weights_and_the_given_scales_of_inputs(recipe: str, algorithm: str, tmp_path: Path):
    scales = {"*.down_proj": 0.0078125, "*": 0.015625}
    net = steelyard.compile(bf16_llama(), recipe, overrides={"lm_head": None})
    with pytest.raises(
        CheckpointError, match=r"and has none; give the recipe, or steelyard.save, input_scales={layer:"
    ):
        steelyard.save(net, tmp_path / "out", format="modelopt")
    steelyard.save(net, tmp_path / "out", format="modelopt", input_scales=scales)
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["quant_algo"] == algorithm
    files = load_file(tmp_path / "out" / "model.safetensors")
    assert float(files["model.layers.0.mlp.down_proj.input_scale"]) == 0.0078125
    assert float(files["model.layers.0.mlp.up_proj.input_scale"]) == 0.015625
    again = steelyard.load(tmp_path / "out")
    for name, values in modelopt_values(tmp_path / "out").items():
        assert torch.equal(again.get_parameter(name).dequantize(dtype=torch.float32), values), name
    with torch.no_grad():
        again(IDS)
    state = again.state_dict()
    assert float(state["_steelyard.model.layers.0.mlp.down_proj.input.scale"]) == 0.0078125
    assert all(row.lhs.endswith("static") for row in again.explain().rows if "proj" in row.layer)


def test_a_recipe_with_scales_of_inputs_is_converted_for_modelopt(plain: Path, tmp_path: Path):
    list(convert(plain, tmp_path / "out", NVFP4BlockScaling(input_scales={"*": 0.015625}), format="modelopt"))
    found = loaded_weight(tmp_path / "out", torch.float32)
    join(tmp_path / "out")
    assert torch.equal(found, modelopt_values(tmp_path / "out")[WEIGHT])
    files = load_file(tmp_path / "out" / "model.safetensors")
    assert float(files[WEIGHT.replace(".weight", ".input_scale")]) == 0.015625


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        (
            "fp8-current",
            {"input_scales": {"*.gate": 1.0}},
            r"input_scales has '\*\.gate', which matches no quantized layer",
        ),
        ("fp8-current", {"input_scales": 1.0}, "input_scales must map patterns of layers to numbers, got 1.0"),
        ("fp8-current", {"input_scales": {"*": 0.0}}, "input_scales must be numbers by patterns of layer names"),
        (
            "mxfp8",
            {"input_scales": {"*": 1.0}},
            "input_scales are those of inputs in fp8-current or nvfp4, got the rec",
        ),
        ("mxfp8", {"input_scales": {"*": 1.0}, "format": "steelyard"}, "got format 'steelyard'; leave them out"),
    ],
    ids=str,
)
def test_wrong_scales_of_inputs_are_refused(recipe: str, options, message: str, tmp_path: Path):
    net = steelyard.compile(bf16_llama(), recipe)
    with pytest.raises((CheckpointError, RecipeError), match=message):
        steelyard.save(net, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


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
