"""Tuned models in every format of checkpoints: the codes that are read again, or an error that says why not."""

import re

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import steelyard
from steelyard.checkpoints.saving import FORMATS
from steelyard.errors import CheckpointError

OWN = "steelyard"
ANY = (OWN, "compressed-tensors")
ALL = (*ANY, "modelopt")
HELD = {
    ("nvfp4-4over6/none", "mxfp8"): ALL,
    ("nvfp4-4over6",): ANY,
    ("nvfp4-4over6/none",): ALL,
    ("nvfp4-4over6/mxfp8",): ANY,
    ("mxfp4/mxfp8",): ANY,
    ("mxfp4/none",): ANY,
    ("mxfp8",): ALL,
    ("fp8-row",): ALL,
}
REFUSED = {
    "modelopt": r"q_proj (must have a static scale of its input|is f4E2M1FN .* ModelOpt has no quant_algo)",
    "fp8": r"q_proj must be FP8 in 128x128 with inputs in 1x128",
    "mxfp4": r"the format mxfp4 is that of gpt-oss, .* got a model of type 'llama'",
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=48, num_hidden_layers=1, max_position_embeddings=64, **sizes)).eval()


@pytest.mark.parametrize(
    "formats",
    [pytest.param(each, marks=[] if len(each) > 1 else [pytest.mark.slow], id="+".join(each)) for each in HELD],
)
@pytest.mark.filterwarnings("ignore:the second scale")
def test_every_format(model, tmp_path, formats):
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(48, (2, 16), generator=generator) for _ in range(4)]
    bits = 6.5 if len(formats) > 1 else 9
    tuned, recipe = steelyard.tune(model, batches, bits=bits, formats=formats)
    net = steelyard.compile(tuned, recipe, weights="quantized")
    with torch.no_grad():
        exact = net(batches[0]).logits
    for format in FORMATS:
        folder = tmp_path / format
        if format not in HELD[formats]:
            with pytest.raises(CheckpointError) as error:
                steelyard.save(net, folder, format=format)
            assert re.search(REFUSED[format], str(error.value))
            assert not folder.exists()
            continue
        steelyard.save(net, folder, format=format)
        loaded = steelyard.load(folder)
        parameters = dict(loaded.named_parameters())
        for name, parameter in tuned.named_parameters():
            assert torch.equal(parameters[name].dequantize().float(), parameter.dequantize().float()), (format, name)
        # Only Steelyard's own format says that inputs choose between 4 and 6.
        if format == OWN or formats != ("nvfp4-4over6",):
            with torch.no_grad():
                assert torch.equal(loaded(batches[0]).logits, exact)
