"""`steelyard generate`: load a checkpoint and print what it writes after a prompt, as it writes it."""

import argparse
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from steelyard.errors import CheckpointError, SteelyardError, shown
from steelyard.tools.console import say, show

_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
_DTYPES = ("float32", "bfloat16")
_EXAMPLES = """examples:
  steelyard generate Llama-3.1-8B-NVFP4 "The capital of France is"
  steelyard generate Llama-3.1-8B-NVFP4 "Once upon a time" --tokens 200 --temperature 0.8 --seed 1
  steelyard generate Llama-3.1-8B "The capital of France is" --recipe mxfp8 --dtype bfloat16
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = "Load a checkpoint, and print what it writes after a prompt, as it writes it."
    parser.epilog = f"{_EXAMPLES}\n{parser.epilog}"
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="a folder with config.json, safetensors files and a tokenizer")
    add("prompt", metavar="PROMPT", help="the text to go on with")
    add("--tokens", type=int, default=100, metavar="N", help="how many tokens at most (default: 100)")
    add("--recipe", help="a recipe's name, instead of what the checkpoint says; plain weights need one")
    add("--dtype", choices=_DTYPES, help="of what is not quantized (default: that of the config)")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--greedy", action="store_true", help="always the likeliest token (the default)")
    choice.add_argument("--temperature", type=float, metavar="T", help="draw tokens by their probabilities")
    add("--seed", type=int, default=0, help="of the tokens that are drawn (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Load, and print text; raises `SteelyardError` for what the user can fix."""
    _check_options(arguments)
    tokenizer = read_tokenizer(Path(arguments.folder))
    prompt = tokenizer(arguments.prompt, return_tensors="pt")
    if not prompt["input_ids"].numel():
        raise SteelyardError("the prompt must have at least one token; write something")
    net = _load(arguments)
    _check_tokens(net, prompt["input_ids"])
    _generate(net, tokenizer, prompt, arguments)
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    if arguments.tokens < 1:
        raise SteelyardError(f"--tokens must be at least 1, got {arguments.tokens}")
    if arguments.temperature is not None and not 0 < arguments.temperature <= 100:
        raise SteelyardError(f"--temperature must be above 0 and at most 100, got {arguments.temperature}")
    if not -(2**63) <= arguments.seed < 2**63:
        raise SteelyardError(f"--seed must have at most 64 bits, got {shown(arguments.seed)}")


def read_tokenizer(folder: Path, what: str = "the prompt") -> Any:
    """The tokenizer in the folder of a checkpoint, which must read `what`; raises `CheckpointError`."""
    from steelyard.checkpoints.models import import_transformers

    transformers = import_transformers()
    if not folder.is_dir():
        raise CheckpointError(f"a checkpoint must be a folder on this machine, got '{folder}'; download it first")
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise CheckpointError(
            f"'{folder}' must have a tokenizer to read {what}, such as {_VOCABULARIES[0]}, and has none; fetch it"
        )
    try:
        return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        found = " ".join(str(error).split())[:300]
        raise CheckpointError(f"the tokenizer in '{folder}' cannot be read: {found}; fetch it again") from error


def _load(arguments: argparse.Namespace) -> Any:
    import torch

    import steelyard

    dtype = None if arguments.dtype is None else getattr(torch, arguments.dtype)
    net = steelyard.load(arguments.folder, recipe=arguments.recipe, dtype=dtype)
    if not hasattr(net, "generate"):
        raise CheckpointError(f"'{arguments.folder}' must hold a model that writes text, got {type(net).__name__}")
    return net


def _check_tokens(net: Any, tokens: Any) -> None:
    known, largest = net.get_input_embeddings().weight.shape[0], int(tokens.max())
    if largest >= known:
        raise CheckpointError(
            f"the tokenizer must have the model's {known} tokens, got token {largest}; fetch it again"
        )


def _generate(net: Any, tokenizer: Any, prompt: Any, arguments: argparse.Namespace) -> None:
    import torch

    streamer, settings = _make_streamer(tokenizer), _settings(arguments)
    torch.manual_seed(arguments.seed)
    with torch.inference_mode():
        net.generate(**prompt, generation_config=settings, streamer=streamer)
    say(_speed(streamer.times))


def _settings(arguments: argparse.Namespace) -> Any:
    """How the folder says that the model writes, with what the command says instead."""
    from steelyard.checkpoints.models import read_generation_config

    folder = Path(arguments.folder)
    found = read_generation_config(folder, _config(folder))
    found.max_new_tokens, found.max_length, found.min_length, found.num_beams = arguments.tokens, None, None, 1
    found.do_sample = arguments.temperature is not None
    found.temperature = arguments.temperature
    if not found.do_sample:
        found.top_p = found.top_k = None
    return found


def _config(folder: Path) -> Any:
    from steelyard.checkpoints.catalog import CONFIG, read_json
    from steelyard.checkpoints.models import read_config

    return read_config(folder, read_json(folder / CONFIG))


def _make_streamer(tokenizer: Any) -> Any:
    from transformers import TextStreamer

    class Streamer(TextStreamer):
        """Prints text by whole words, and remembers when each token came."""

        def __init__(self):
            super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
            self.times: list[float] = []

        def put(self, value: Any) -> None:
            if not self.next_tokens_are_prompt:
                self.times.append(time.perf_counter())
            super().put(value)

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            show(text, end="\n" if stream_end else "")

    return Streamer()


def _speed(times: list[float]) -> str:
    """How fast tokens came: the median, for the first calls compile."""
    count = f"{len(times)} token{'s' * (len(times) != 1)}"
    if len(times) < 2:
        return count
    return f"{count}, {1 / statistics.median(after - before for before, after in pairwise(times)):.1f} tokens/s"
