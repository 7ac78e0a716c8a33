"""A diffusion pipeline whose UNet or transformer is a net."""

import copy

import pytest
import torch
from architectures import DIFFUSION_MODELS
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel
from fake_quantization import FakeQuantizedGemms

import steelyard

STEPS = 4


def make_pipeline() -> DDIMPipeline:
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )
    pipeline = DDIMPipeline(unet.eval(), DDIMScheduler(num_train_timesteps=100))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def pictures(pipeline) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    made = pipeline(batch_size=2, generator=generator, num_inference_steps=STEPS, output_type="np").images
    return torch.from_numpy(made)


def test_a_pipeline_makes_the_pictures_of_rounded_operands():
    pipeline = make_pipeline()
    exact = pictures(pipeline)
    unet = pipeline.unet
    compiled = DDIMPipeline(steelyard.compile(unet, "mxfp8"), pipeline.scheduler)
    compiled.set_progress_bar_config(disable=True)
    found = pictures(compiled)
    rows = compiled.unet.explain().rows
    quantized = {(row.layer, row.N, row.K) for row in rows if row.is_quantized}
    with FakeQuantizedGemms(unet, "mxfp8", quantized) as gemms:
        rounded = pictures(pipeline)
    assert quantized <= gemms.found
    assert ("mid_block.attentions.0.to_q", "64", "64") in quantized
    assert {row.layer for row in rows if "convolution" in row.reason} >= {"conv_in", "conv_out"}
    error = (rounded - exact).norm()
    assert 0 < error < 0.05 * exact.norm()
    assert (found - rounded).norm() <= 0.25 * error
    # Every step ran the program of the first.
    assert len(compiled.unet._steelyard.backend.compilations) == 1


def test_a_saved_pipeline_is_the_plain_one(tmp_path):
    pipeline = make_pipeline()
    plain = copy.deepcopy(pipeline.unet)
    pipeline.unet = steelyard.compile(pipeline.unet, "mxfp8")
    pipeline.save_pretrained(tmp_path)
    loaded = DDIMPipeline.from_pretrained(tmp_path)
    assert type(loaded.unet) is UNet2DModel
    pairs = zip(loaded.unet.state_dict().items(), plain.state_dict().items(), strict=True)
    assert all(name == other and torch.equal(a, b) for (name, a), (other, b) in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFUSION_MODELS)
def test_a_diffusion_model_trains(name):
    """A step of gradient descent follows the one of the eager model."""
    model, arguments = DIFFUSION_MODELS[name].make()
    net = steelyard.compile(copy.deepcopy(model), "mxfp8")
    gradients = []
    for each in (model, net):
        each(**arguments).sample.pow(2).mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in each.parameters() if p.grad is not None]))
    exact, found = gradients
    assert 0 < (found - exact).norm() < 0.2 * exact.norm()
    assert {row.kind for row in net.explain().rows if row.is_quantized} == {"fprop", "dgrad", "wgrad"}
