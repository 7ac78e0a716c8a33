"""A language model in few bits by another program, judged: `peer_tuning.py` runs this in that program's environment.

    python peer_quantizers.py NAME WORK ROWS

WORK has the model as transformers saves it, its GGUF file and `texts.pt`, of which ROWS are for calibration. One line
of JSON is printed.
"""

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from language_judge import ROWS, judge
from torch import nn
from torch.nn import functional

HEAD = "lm_head"
NVFP4, FP8, HIGH, Q4_1 = 4.5, 8.0, 16.0, 5.0
"""Bits per weight, block scales included."""
GGUF = "model.gguf"


class Quantized(NamedTuple):
    model: Any
    bits: float


def llm_compressor(model: nn.Module, calibration: torch.Tensor, scheme: str, *, compensates: bool) -> Quantized:
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from transformers import AutoTokenizer

    kind = GPTQModifier if compensates else QuantizationModifier
    rows = {"input_ids": calibration.tolist(), "attention_mask": torch.ones_like(calibration).tolist()}
    oneshot(
        model=model,
        dataset=Dataset.from_dict(rows),
        tokenizer=AutoTokenizer.from_pretrained(model.name_or_path),
        recipe=kind(targets="Linear", scheme=scheme, ignore=[HEAD]),
        num_calibration_samples=len(calibration),
        max_seq_length=calibration.shape[1],
    )
    return Quantized(model, NVFP4)


def modelopt_nvfp4(model: nn.Module, calibration: torch.Tensor, config: str) -> Quantized:
    import modelopt.torch.quantization as mtq

    def calibrate(quantized: nn.Module) -> None:
        for part in calibration.split(ROWS):
            quantized(part)

    return Quantized(mtq.quantize(model, _on_cpu(getattr(mtq, config)), calibrate), NVFP4)


def modelopt_auto_quantize(model: nn.Module, calibration: torch.Tensor, bits: float) -> Quantized:
    """A choice between NVFP4, FP8 and high precision for each layer, by gradients of the loss."""
    import modelopt.torch.quantization as mtq

    batches = list(calibration.split(ROWS))
    # It counts the head, which it is told to leave alone, with 16 bits.
    sizes = {name: module.weight.numel() for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    effective = bits + (HIGH - bits) * sizes[HEAD] / sum(sizes.values())
    searched, _ = mtq.auto_quantize(
        model,
        constraints={"effective_bits": effective},
        quantization_formats=[_on_cpu(mtq.NVFP4_DEFAULT_CFG), mtq.FP8_DEFAULT_CFG],
        data_loader=batches,
        forward_step=lambda net, batch: net(batch),
        loss_func=lambda output, batch: functional.cross_entropy(
            output.logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten()
        ),
        disabled_layers=f"*{HEAD}*",
        num_calib_steps=len(batches),
        num_score_steps=len(batches),
    )
    return Quantized(searched, _mean_bits(searched))


def llama_cpp(model: nn.Module) -> Quantized:
    """llama.cpp on the file that the float32 weights were decoded from, with inputs in 8-bit integers."""
    from llama_cpp import Llama

    file = Path(model.name_or_path).with_name(GGUF)
    own = Llama(str(file), n_ctx=512, n_batch=512, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False)

    def logits(row: torch.Tensor) -> torch.Tensor:
        own.reset()
        own.eval(row.tolist())
        return torch.from_numpy(own.scores[: len(row)].copy())

    return Quantized(lambda rows: SimpleNamespace(logits=torch.stack([logits(row) for row in rows])), Q4_1)


def _on_cpu(config: dict) -> dict:
    """A configuration whose NVFP4 quantizers run on a CPU.

    ModelOpt's fake quantization to NVFP4 is for CUDA only. Its packed tensors are not: the same scales, and codes.
    """
    from modelopt.torch.quantization.nn.modules.tensor_quantizer import register_quant_backend
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    def rounded(x: torch.Tensor, quantizer: Any) -> torch.Tensor:
        second = quantizer.amax.float() / (6.0 * 448.0)
        codes, scales, second = NVFP4QTensor.quantize(x.detach(), 16, weights_scaling_factor_2=second)
        values = codes.dequantize(x.dtype, scale=scales, double_scale=second, block_sizes={-1: 16})
        return x + (values - x).detach()

    register_quant_backend("packed_nvfp4", rounded)
    changed = copy.deepcopy(config)
    for entry in changed["quant_cfg"]:
        if "block_sizes" in (entry.get("cfg") or {}):
            entry["cfg"]["backend"] = "packed_nvfp4"
    return changed


def _mean_bits(model: nn.Module) -> float:
    """By the weight quantizers of all linears but the head."""
    total, count = 0.0, 0
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear) or HEAD in name:
            continue
        quantizer = module.weight_quantizer
        bits = HIGH if not quantizer.is_enabled else NVFP4 if quantizer.block_sizes else FP8
        total, count = total + bits * module.weight.numel(), count + module.weight.numel()
    return total / count


MAKERS: dict[str, Callable[[nn.Module, torch.Tensor], Quantized]] = {
    "llm-compressor NVFP4": lambda model, rows: llm_compressor(model, rows, "NVFP4", compensates=False),
    "llm-compressor NVFP4, GPTQ": lambda model, rows: llm_compressor(model, rows, "NVFP4", compensates=True),
    "llm-compressor NVFP4A16, GPTQ": lambda model, rows: llm_compressor(model, rows, "NVFP4A16", compensates=True),
    "ModelOpt NVFP4": lambda model, rows: modelopt_nvfp4(model, rows, "NVFP4_DEFAULT_CFG"),
    "ModelOpt NVFP4, AWQ": lambda model, rows: modelopt_nvfp4(model, rows, "NVFP4_AWQ_LITE_CFG"),
    "ModelOpt auto_quantize, 6 bits": lambda model, rows: modelopt_auto_quantize(model, rows, 6.0),
    "llama.cpp Q4_1": lambda model, _: llama_cpp(model),
}


def main(name: str, work: Path, rows: int) -> None:
    from transformers import AutoModelForCausalLM

    exact = AutoModelForCausalLM.from_pretrained(work / "model", dtype=torch.float32).eval()
    exact.config.use_cache = False
    texts = torch.load(work / "texts.pt")
    calibration = texts["calibration"][:rows]
    made = MAKERS[name](copy.deepcopy(exact), calibration)
    if isinstance(made.model, nn.Module):
        made.model.eval()
    found = {text: judge(made.model, exact, texts[text]) for text in ("topics", "docstrings")}
    print(json.dumps({"name": name, "bits": made.bits, "tokens": calibration.numel(), **found}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
