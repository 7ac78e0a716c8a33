"""LoRA over nets, and over frozen weights that are quantized (QLoRA), with the peft library."""

import copy

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from small_llama import make_small_llama
from torch import nn
from transformers.pytorch_utils import Conv1D

import steelyard
from steelyard.errors import UnsupportedModelError
from steelyard.tensor import QuantizedTensor

# peft says that it knows the layout of a Conv1D.
pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out")
RECIPES = ("fp8-current", "fp8-block", "mxfp8", "nvfp4")


class Model(nn.Module):
    """Layers that adapters are put on, one whose weight is stored as [K, N] among them, and a head."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 96), Conv1D(64, 96), nn.Linear(64, 32, bias=False)

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


def make_model() -> Model:
    torch.manual_seed(0)
    return Model()


def make_config() -> LoraConfig:
    return LoraConfig(r=16, target_modules=["first", "second"], lora_alpha=16)


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(24, 64, generator=generator), torch.randn(24, 32, generator=generator)


def train(net, steps: int = 6) -> list[float]:
    x, target = make_batch()
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=2e-2)
    losses = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def adapters_then_compile(recipe):
    """Adapters on the model; the net quantizes what is frozen at the first step."""
    net = steelyard.compile(get_peft_model(make_model(), make_config()), recipe, weights="quantized")
    return net, net


def compile_then_adapters(recipe):
    """Adapters on a net that has never run."""
    net = steelyard.compile(make_model(), recipe, weights="quantized")
    return net, get_peft_model(net, make_config())


def quantize_then_adapters(recipe):
    """Adapters on a net whose weights are quantized already."""
    net = steelyard.compile(make_model(), recipe, weights="quantized")
    with torch.no_grad():
        net(make_batch()[0])
    return net, get_peft_model(net, make_config())


def quantize_then_compile_again(recipe):
    """Adapters on the model that a net has quantized, and another net for both."""
    model = make_model()
    with torch.no_grad():
        steelyard.compile(model, recipe, weights="quantized")(make_batch()[0])
    net = steelyard.compile(get_peft_model(model, make_config()), recipe)
    return net, net


ORDERS = (adapters_then_compile, compile_then_adapters, quantize_then_adapters, quantize_then_compile_again)


def base_weights(model) -> dict[str, torch.Tensor]:
    return {name: p for name, p in model.named_parameters() if name.endswith("weight") and "lora_" not in name}


@pytest.mark.every(3)
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
def test_every_order_trains_adapters_over_codes(order):
    net, trained = order("mxfp8")
    losses = train(trained)
    assert losses[-1] < 0.9 * losses[0]
    weights = base_weights(trained)
    assert len(weights) == 3
    assert all(isinstance(weight, QuantizedTensor) and not weight.requires_grad for weight in weights.values())
    adapters = [p for name, p in trained.named_parameters() if "lora_" in name]
    assert len(adapters) == 4
    assert all(p.requires_grad and p.grad is not None and not isinstance(p, QuantizedTensor) for p in adapters)
    assert all(p.grad is None for name, p in trained.named_parameters() if "lora_" not in name)
    assert all(row.is_quantized for row in net.explain().rows)


@pytest.mark.every(4)
@pytest.mark.parametrize("recipe", RECIPES)
def test_gradients_are_those_through_the_decoded_weights(recipe):
    _, trained = quantize_then_adapters(recipe)
    train(trained, steps=2)
    eager = get_peft_model(make_model(), make_config())
    eager.load_state_dict({name: as_plain(parameter) for name, parameter in trained.named_parameters()})
    cached = steelyard.compile(copy.deepcopy(eager), recipe)
    found, exact, again = (gradients(model) for model in (trained, eager, cached))
    for name, expected in exact.items():
        # An e2m1 code has one bit of fraction, an e4m3 code three; the errors of several products add up.
        assert (found[name] - expected).norm() < (0.8 if recipe == "nvfp4" else 0.3) * expected.norm(), name
        # Scales that are powers of two: what the codes decode to has the same codes, in blocks of rows and of columns.
        if recipe in ("mxfp8", "fp8-block"):
            assert torch.equal(found[name], again[name]), name


def gradients(model) -> dict[str, torch.Tensor]:
    x, target = make_batch()
    x.requires_grad_()
    model.zero_grad()
    nn.functional.mse_loss(model(x), target).backward()
    return {name: p.grad for name, p in model.named_parameters() if "lora_" in name} | {"x": x.grad}


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", ["fp8-current", "nvfp4"])
def test_training_reads_the_codes_of_inference(recipe):
    """Neither quantizes the decoded weights again."""
    _, trained = quantize_then_adapters(recipe)
    x, _ = make_batch()
    before = {name: [part.clone() for part in weight._parts()] for name, weight in base_weights(trained).items()}
    with torch.no_grad():
        expected = trained(x)
    assert torch.equal(trained(x), expected)
    train(trained, steps=2)
    for name, weight in base_weights(trained).items():
        assert all(torch.equal(a, b) for a, b in zip(weight._parts(), before[name], strict=True))


@pytest.mark.every(2)
@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4"])
def test_merge_quantizes_the_sum(recipe):
    net, trained = quantize_then_adapters(recipe)
    train(trained)
    layers = {"first": trained.base_model.model.first, "second": trained.base_model.model.second}
    sums = {
        name: layer.base_layer.weight.dequantize() + layer.get_delta_weight("default") for name, layer in layers.items()
    }
    expected = copy.deepcopy(net.model)
    for name, dense in sums.items():
        expected.get_submodule(name).base_layer.weight.data = dense.detach()
    trained.merge_adapter()
    for name, dense in sums.items():
        weight = net.model.get_submodule(name).base_layer.weight
        assert isinstance(weight, QuantizedTensor)
        decoded = weight.dequantize()
        assert torch.equal(decoded, expected.get_submodule(name).base_layer.weight.dequantize())
        assert (decoded - dense).abs().max() <= (0.25 if recipe == "nvfp4" else 0.07) * dense.abs().max()
    x, _ = make_batch()
    with torch.no_grad():
        merged = trained(x)
    unloaded = trained.unload()
    assert unloaded is net
    with torch.no_grad():
        assert torch.equal(net(x), merged)
    assert isinstance(net.model.first, nn.Linear)
    assert isinstance(net.model.first.weight, QuantizedTensor)


def test_unmerge_and_merge_and_unload():
    net, trained = adapters_then_compile("mxfp8")
    train(trained)
    weight = net.model.base_model.model.first.base_layer.weight
    before = weight.dequantize()
    trained.merge_adapter()
    trained.unmerge_adapter()
    # Rounded twice to three bits of fraction.
    assert (weight.dequantize() - before).abs().max() <= 2**-3 * before.abs().max()
    x, _ = make_batch()
    with torch.no_grad():
        expected = trained(x)
        found = trained.merge_and_unload()(x)
    assert isinstance(net.model.base_model.model.first, nn.Linear)
    assert (found - expected).norm() < 0.15 * expected.norm()


def test_adapter_files(tmp_path):
    _, trained = compile_then_adapters("nvfp4")
    train(trained)
    trained.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"adapter_model.safetensors", "adapter_config.json"}
    net = steelyard.compile(make_model(), "nvfp4", weights="quantized")
    loaded = PeftModel.from_pretrained(net, tmp_path)
    x, _ = make_batch()
    with torch.no_grad():
        assert torch.equal(loaded(x), trained(x))


def test_adapters_stay_trainable_after_inference():
    """What is compiled for inference as it was made is quantized although it requires gradients; adapters are not."""
    net, trained = compile_then_adapters("mxfp8")
    with torch.no_grad():
        trained(make_batch()[0])
    assert all(p.requires_grad for name, p in trained.named_parameters() if "lora_" in name)
    stays = {row.weight: row.stays for row in net.explain().rows}
    assert stays["first.lora_A.default.weight"] == "it is trained"


def test_quantized_parameters_that_require_gradients():
    net, trained = quantize_then_adapters("mxfp8")
    net.model.requires_grad_(True)
    with pytest.raises(UnsupportedModelError, match=r"weight is a MXFP8Tensor.*requires_grad_\(False\)"):
        trained(make_batch()[0])


@pytest.mark.slow
def test_llama_with_gradient_checkpointing():
    torch.manual_seed(0)
    model = make_small_llama(use_cache=False)
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    peft_model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"])).train()
    net = steelyard.compile(peft_model, "mxfp8", weights="quantized")
    ids = torch.randint(0, 64, (2, 8))
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(4):
        loss = net(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert isinstance(net.model.base_model.model.model.layers[0].mlp.up_proj.weight, QuantizedTensor)


@pytest.mark.slow
def test_dora_and_several_adapters():
    """DoRA reads the values of the weight, too: they come from its codes."""
    config = LoraConfig(r=16, target_modules=["first"], use_dora=True)
    net = steelyard.compile(get_peft_model(make_model(), config), "mxfp8", weights="quantized")
    losses = train(net)
    assert losses[-1] < losses[0]
    net, trained = compile_then_adapters("mxfp8")
    x, _ = make_batch()
    with torch.no_grad():
        base = trained(x)
    train(trained, steps=3)
    trained.add_adapter("other", make_config())
    trained.set_adapter("other")
    losses = train(trained)
    assert losses[-1] < losses[0]
    with torch.no_grad():
        other = trained(x)
        with trained.disable_adapter():
            assert torch.equal(trained(x), base)
        trained.set_adapter("default")
        assert not torch.equal(trained(x), other)
