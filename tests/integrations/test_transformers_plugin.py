"""`from_pretrained` of transformers returns nets, and `save_pretrained` writes what it loads again."""

import copy
import gc
import json
import pickle
import warnings
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from small_llama import make_small_llama
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Trainer,
    TrainingArguments,
)

import steelyard
from steelyard.checkpoints.conversion import convert
from steelyard.driver.net import CompiledModule
from steelyard.errors import CheckpointError, RecipeError, SteelyardError, TargetError, UnsupportedModelError
from steelyard.recipes import Float8CurrentScaling, NVFP4BlockScaling
from steelyard.tensor import QuantizedTensor
from steelyard.transformers import SteelyardConfig, read_config

IDS = torch.randint(1, 64, (2, 9), generator=torch.Generator().manual_seed(0))
TABLE = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def make_model(**options):
    torch.manual_seed(0)
    return make_small_llama(eos_token_id=None, pad_token_id=0, **options).eval()


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    make_model().save_pretrained(folder)
    return folder


def load(folder: Path, *arguments, **options):
    """A model that loads without a warning and without a key too many or too few."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, found = AutoModelForCausalLM.from_pretrained(folder, *arguments, output_loading_info=True, **options)
    assert not any(found.values()), found
    return model


def quantized_names(model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if isinstance(parameter, QuantizedTensor)}


@pytest.mark.parametrize(
    "recipe", ["nvfp4", *(pytest.param(each, marks=pytest.mark.slow) for each in ("mxfp8", "fp8-row"))]
)
def test_plain_checkpoint(recipe, plain, tmp_path):
    """The model of from_pretrained computes what a compiled one does, and so does what it saves."""
    loaded = load(plain, quantization_config=SteelyardConfig(recipe))
    net = steelyard.compile(make_model(), recipe, weights="quantized")
    with torch.no_grad():
        expected = net(IDS).logits
    # Nothing requires a gradient, so that a call without no_grad() is one for inference.
    assert torch.equal(loaded(IDS).logits, expected)
    assert quantized_names(loaded) == quantized_names(net)
    assert "lm_head.weight" in quantized_names(loaded)
    loaded.save_pretrained(tmp_path)
    check_round_trip(loaded, tmp_path, recipe)


def test_weights_are_quantized_as_they_are_read(plain, tmp_path):
    """Codes are the parameters before any call, decode to what ml_dtypes rounds, and are saved in other formats."""
    model = load(plain, quantization_config=SteelyardConfig("fp8-row", overrides={"*.o_proj": None}))
    weights = {name: tensor for name, tensor in make_model().named_parameters() if tensor.dim() == 2}
    kept = {"model.embed_tokens.weight", "model.layers.0.self_attn.o_proj.weight"}
    assert quantized_names(model) == weights.keys() - kept
    for name in quantized_names(model):
        values = weights[name].detach().numpy()
        factors = np.float32(448) / np.abs(values).max(1, keepdims=True)
        expected = (values * factors).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * (np.float32(1) / factors)
        np.testing.assert_array_equal(model.get_parameter(name).dequantize().numpy(), expected, err_msg=name)
    expected = model(IDS).logits
    steelyard.save(model, tmp_path / "other", format="compressed-tensors")
    with torch.no_grad():
        assert torch.equal(steelyard.load(tmp_path / "other")(IDS).logits, expected)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["mxfp8", pytest.param("fp8-delayed", marks=pytest.mark.slow)])
def test_save_before_the_first_call(recipe, tmp_path):
    """save_pretrained writes codes, whether the model was called or not; a tied output layer is left alone."""
    model = make_model(tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "plain")
    loaded = load(tmp_path / "plain", quantization_config=SteelyardConfig(recipe))
    loaded.save_pretrained(tmp_path / "saved")
    net = steelyard.compile(model, recipe, weights="quantized", overrides={"lm_head": None})
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, net(IDS).logits)
    assert "lm_head.weight" not in quantized_names(loaded)
    check_round_trip(loaded, tmp_path / "saved", recipe)


def check_round_trip(model, folder: Path, recipe: str) -> None:
    """Files hold the codes of a model, and from_pretrained takes them as they are."""
    again = load(folder)
    assert quantized_names(again) == quantized_names(model)
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    before, after = model.state_dict(), load_file(folder / "model.safetensors")
    assert after["model.layers.0.mlp.up_proj.weight"].dtype == torch.uint8
    assert all(torch.equal(after[name], before[name]) for name in after if not name.startswith("_steelyard."))
    saved = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert (saved["quant_method"], saved["recipe"]["recipe"]) == ("steelyard", recipe)


def test_what_one_saves_the_other_loads(plain, tmp_path):
    """Nets that steelyard.save and save_pretrained write, read by from_pretrained and steelyard.load."""
    loaded = load(plain, quantization_config=SteelyardConfig("mxfp8", overrides={"*.down_proj": "fp8-row"}))
    expected = loaded(IDS).logits
    loaded.save_pretrained(tmp_path / "saved")
    net = steelyard.load(tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(net(IDS).logits, expected)
    steelyard.save(net, tmp_path / "again", format="steelyard")
    assert torch.equal(load(tmp_path / "again")(IDS).logits, expected)


def test_a_published_checkpoint_is_saved_as_it_came(plain, tmp_path):
    """Also what transformers itself has loaded of it: norms and embeddings."""
    for _ in convert(plain, tmp_path / "published", "fp8-row"):
        pass
    model = load(tmp_path / "published", config=read_config(tmp_path / "published"))
    steelyard.save(model, tmp_path / "again")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("published", "again"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype
        assert torch.equal(tensor.view(torch.uint8), after[name].view(torch.uint8)), name


@pytest.mark.slow
def test_shards_and_base_model(plain, tmp_path):
    """Parts of a parameter may lie in several files, and the model without its head reads what it needs."""
    model = load(plain, quantization_config=SteelyardConfig("nvfp4"))
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    assert torch.equal(load(tmp_path)(IDS).logits, model(IDS).logits)
    base = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(base(IDS).last_hidden_state, model(IDS, output_hidden_states=True).hidden_states[-1])
    assert all(row.is_quantized for row in base.explain().rows if row.weight)


def test_generate(plain):
    """Generation is greedy decoding by hand, and every product with a weight is compiled and quantized."""
    model = load(plain, quantization_config=SteelyardConfig("mxfp8"))
    made = model.generate(IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=4, do_sample=False)
    net = steelyard.compile(make_model(), "mxfp8", weights="quantized")
    expected = IDS
    with torch.no_grad():
        for _ in range(4):
            expected = torch.cat([expected, net(expected).logits[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(made, expected)
    rows = [row for row in model.explain().rows if row.weight]
    assert {row.layer for row in rows} >= {"lm_head", "model.layers.0.mlp.down_proj"}
    assert all(row.is_quantized for row in rows)
    assert "scaled.gemm" in model.ir("quantized")


def test_is_a_net(plain):
    """The model itself is the net, and copies and pickles of it are nets."""
    model = load(plain, quantization_config=SteelyardConfig("mxfp8"))
    expected = model(IDS).logits
    assert isinstance(model, CompiledModule)
    assert type(model).__name__ == "LlamaForCausalLM"
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(IDS).logits, expected)
        assert all(row.is_quantized for row in other.explain().rows if row.weight)
    with pytest.raises(UnsupportedModelError, match="compiled already"):
        steelyard.compile(model, "mxfp8")


@pytest.mark.slow
def test_is_freed(plain):
    """A model that is dropped is freed."""

    def make() -> weakref.ref:
        model = load(plain, quantization_config=SteelyardConfig("mxfp8"))
        model(IDS)
        return weakref.ref(model)

    alive = make()
    gc.collect()
    assert alive() is None


@pytest.mark.slow
def test_ignore_and_overrides(plain, tmp_path):
    """Patterns choose layers, the first one decides, and files keep their order."""
    config = SteelyardConfig(
        NVFP4BlockScaling(activations=Float8CurrentScaling(input_scales={"*.o_proj": 0.5, "*": 2.0})),
        ignore=["lm_head", "*.down_proj"],
        overrides={"*.q_proj": "mxfp8", "*.self_attn.*": None},
    )
    model = load(plain, quantization_config=config)
    expected = {
        *(f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up")),
        "model.layers.0.self_attn.q_proj.weight",
    }
    model(IDS)
    assert quantized_names(model) == expected
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert again.config.quantization_config.to_dict() == config.to_dict()
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    options = again.config.quantization_config.options_for(again)
    assert list(options["overrides"]) == ["lm_head", "*.down_proj", "*.q_proj", "*.self_attn.*"]
    assert options["recipe"].input_scale("a.o_proj") == 0.5


def write_modelopt(folder: Path, algorithm: str) -> dict[str, torch.Tensor]:
    """Write a checkpoint as ModelOpt does; returns the values that its weights stand for."""
    model = make_model().to(torch.bfloat16)
    model.save_pretrained(folder)
    tensors, values = load_file(folder / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors.pop(name).float()
        tensors[f"{name.removesuffix('.weight')}.input_scale"] = torch.tensor(0.01)
        if algorithm == "FP8":
            scale = weight.abs().max() / 448
            codes = (weight / scale).to(torch.float8_e4m3fn)
            tensors |= {name: codes, f"{name}_scale": scale}
            values[name] = codes.float() * scale
            continue
        second = weight.abs().max() / 2688
        blocks = weight.unflatten(1, (-1, 16))
        scales = (blocks.abs().amax(-1) / (6 * second)).to(torch.float8_e4m3fn)
        factors = (scales.float() * second)[..., None]
        codes = ((blocks / factors)[..., None] - TABLE).abs().argmin(-1)
        packed = codes.flatten(1).to(torch.uint8)
        packed = packed[:, ::2] | packed[:, 1::2] << 4
        tensors |= {name: packed, f"{name}_scale": scales, f"{name}_scale_2": second}
        values[name] = (TABLE[codes] * factors).flatten(1)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    set_method(folder, {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]})
    return values


def set_method(folder: Path, about: dict) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": about}))


@pytest.mark.every(2)
@pytest.mark.parametrize("algorithm", ["FP8", "NVFP4"])
def test_modelopt(algorithm, tmp_path):
    """from_pretrained reads ModelOpt's codes as what they stand for, and saves what it loads again."""
    folder = tmp_path / "published"
    values = write_modelopt(folder, algorithm)
    model = load(folder)
    assert quantized_names(model) == set(values)
    for name, value in values.items():
        assert torch.equal(model.get_parameter(name).dequantize(), value.to(torch.bfloat16)), name
    logits = model(IDS).logits
    rows = [row for row in model.explain().rows if row.weight and row.layer != "lm_head"]
    assert len(rows) == 7
    assert all(row.is_quantized and "static" in row.lhs for row in rows)
    reference = make_model().to(torch.bfloat16)
    reference.load_state_dict({name: value.to(torch.bfloat16) for name, value in values.items()}, strict=False)
    with torch.no_grad():
        expected = reference(IDS).logits
    assert (logits - expected).norm() < 0.2 * expected.norm()
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(load(tmp_path / "again")(IDS).logits, logits)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("algorithm", ["FP8", "NVFP4"])
def test_modelopt_itself(algorithm, tmp_path):
    """What ModelOpt exports has the values that its own tensors decode to."""
    pytest.importorskip("modelopt")
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor

    model = make_model().to(torch.bfloat16)
    model.config.architectures = ["LlamaForCausalLM"]
    made = mtq.quantize(model, getattr(mtq, f"{algorithm}_DEFAULT_CFG"), lambda model: model(IDS))
    export_hf_checkpoint(made, export_dir=tmp_path)
    tensors, loaded = load_file(tmp_path / "model.safetensors"), AutoModelForCausalLM.from_pretrained(tmp_path)
    names = [name.removesuffix("_scale") for name in tensors if name.endswith(".weight_scale")]
    assert quantized_names(loaded) == set(names)
    for name in names:
        parameter, scale = loaded.get_parameter(name), tensors[f"{name}_scale"]
        if algorithm == "FP8":
            expected = FP8QTensor(parameter.shape, torch.float32, tensors[name]).dequantize(scale=scale)
        else:
            packed = NVFP4QTensor(parameter.shape, torch.float32, tensors[name])
            second = tensors[f"{name}_scale_2"]
            expected = packed.dequantize(scale=scale, double_scale=second, block_sizes={-1: 16})
        assert torch.equal(parameter.dequantize(), expected.to(torch.bfloat16)), name


@pytest.mark.slow
def test_method_of_transformers(tmp_path):
    """read_config gives formats to Steelyard that transformers would decode."""
    make_model().to(torch.bfloat16).save_pretrained(tmp_path)
    tensors, values = load_file(tmp_path / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors[name].float()
        scale = (weight.abs().amax(1, keepdim=True) / 448).to(torch.bfloat16)
        tensors[name] = (weight / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale"] = scale
        values[name] = (tensors[name].float() * scale.float()).to(torch.bfloat16)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    fp8 = {"num_bits": 8, "type": "float"}
    group = {
        "targets": ["Linear"],
        "weights": fp8 | {"strategy": "channel"},
        "input_activations": fp8 | {"strategy": "token", "dynamic": True},
    }
    about = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"]}
    set_method(tmp_path, about | {"config_groups": {"group_0": group}})
    model = load(tmp_path, config=read_config(tmp_path))
    assert quantized_names(model) == set(values)
    assert all(torch.equal(model.get_parameter(name).dequantize(), value) for name, value in values.items())
    model(IDS)
    assert all(row.is_quantized for row in model.explain().rows if row.weight and row.layer != "lm_head")


@pytest.mark.slow
def test_adapters(plain):
    """Adapters are trained over the codes, and the model alone is not."""
    model = load(plain, quantization_config=SteelyardConfig("mxfp8"))
    model(IDS)
    codes = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tuned = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "down_proj"]))
    optimizer = torch.optim.AdamW([p for p in tuned.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(4):
        loss = tuned(IDS, labels=IDS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
    after = tuned.get_base_model().state_dict()
    for name, tensor in codes.items():
        adapted = name.replace("q_proj.", "q_proj.base_layer.").replace("down_proj.", "down_proj.base_layer.")
        assert torch.equal(after[adapted], tensor), name


def test_trainer(plain, tmp_path):
    """The Trainer takes adapters over the model, and says that the model alone cannot be trained."""
    model = load(plain, quantization_config=SteelyardConfig("mxfp8"))
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(ValueError, match="attach trainable adapters"):
        Trainer(model=model, args=arguments)
    Trainer(model=get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj"])), args=arguments)


@pytest.mark.slow
def test_experts(tmp_path):
    """The weights of experts are saved and loaded as quantized stacks."""
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    config = MixtralConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, num_local_experts=4)
    torch.manual_seed(0)
    MixtralForCausalLM(config).save_pretrained(tmp_path / "plain")
    model = load(tmp_path / "plain", quantization_config=SteelyardConfig("mxfp8"))
    expected = model(IDS).logits
    assert "model.layers.0.mlp.experts.gate_up_proj" in quantized_names(model)
    model.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert quantized_names(again) == quantized_names(model)
    assert torch.equal(again(IDS).logits, expected)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"quantization_config": SteelyardConfig()}, RecipeError, "needs a recipe"),
        ({"device_map": "cuda"}, TargetError, "needs a GPU"),
        ({"device_map": {"model": "cpu", "lm_head": "disk"}}, TargetError, "all of the model on one device"),
        ({"tp_plan": "auto"}, UnsupportedModelError, "whole in one process"),
        ({"device_map": "mps"}, TargetError, "all of the model on one device"),
    ],
)
def test_refusals(options, error, message, plain):
    with pytest.raises(error, match=message):
        AutoModelForCausalLM.from_pretrained(plain, **({"quantization_config": SteelyardConfig("mxfp8")} | options))


@pytest.mark.slow
def test_other_dtype(plain, tmp_path):
    """Codes present the dtype that they were saved with."""
    load(plain, quantization_config=SteelyardConfig("mxfp8")).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"in torch.bfloat16, got \[64, 64\] in torch.float32"):
        AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)


def test_configs(plain):
    with pytest.raises(RecipeError, match="list of patterns"):
        SteelyardConfig("mxfp8", ignore="lm_head")
    with pytest.raises(RecipeError, match="mxfp9"):
        SteelyardConfig("mxfp9")
    with pytest.raises(CheckpointError, match="must have a quantization_config"):
        read_config(plain)
    config = AutoConfig.from_pretrained(plain)
    config.quantization_config = {"quant_method": "steelyard", "source": {"quant_method": "gptq"}}
    with pytest.raises(SteelyardError, match="quant_method"):
        AutoModelForCausalLM.from_pretrained(plain, config=config)
