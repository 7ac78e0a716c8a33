"""Speed of SmolLM2-135M as tuning leaves it, lm_head in float32: a prompt, and one token.

What a weight is rounded to changes no time, so weights are the model's own, and formats those of recipes: plain ones,
and the mixes that `tuned_model.py` found.
"""

import json
from functools import partial
from pathlib import Path

import torch
from contest import Contender, Maker, compete, contest_table
from decoding import Step
from report import Table

import steelyard
from steelyard.recipes import MixedRecipe
from steelyard.tools import trained

FORMATS = ("nvfp4-4over6", "nvfp4", "nvfp4-4over6/mxfp8", "nvfp4-4over6/none", "mxfp8", "fp8-row")
FOUND = Path(__file__).parent / "results" / "tuning" / "tuned_model.json"
PROMPT, CACHED = 512, 128
STEP = "model."
"""What names of layers begin with inside of a step."""


def measure(quick: bool = False) -> Table:
    """One row per work and contender, on one thread."""
    table = contest_table("SmolLM2-135M in the formats of tuning, lm_head in float32", "eager")
    table.notes.append("The step is frozen. Weights are rounded to the nearest code: errors are not those of tuning.")
    own = trained.load()
    model, recipes = own.model, {**{name: _plain(name) for name in FORMATS}, **mixes()}
    tokens = own.tokens(64 if quick else PROMPT)
    prompts: dict[str, Maker] = {"eager": lambda: Contender(lambda: model(tokens, use_cache=False).logits)}
    for name, recipe in recipes.items():
        prompts[name] = partial(_prompt, steelyard.compile(model, recipe), tokens)
    compete(table, f"prompt of {tokens.shape[1]}", 1, prompts, calls=5, seconds=8.0)

    arguments, step = _step(model)
    steps: dict[str, Maker] = {"eager": lambda: Contender(lambda: step(*arguments))}
    for name, recipe in recipes.items():
        steps[name] = partial(_frozen, steelyard.compile(step, _inside(recipe)), arguments)
    compete(table, f"1 token after {CACHED}", 1, steps, calls=3 if quick else 30, seconds=4.0)
    return table


def mixes() -> dict[str, MixedRecipe]:
    """The recipes with several formats that tuning has found."""
    rows = json.loads(FOUND.read_text()) if FOUND.exists() else []
    return {row["name"]: MixedRecipe.from_dict(row["recipe"]) for row in rows if row["name"].startswith("mixed")}


def _plain(name: str) -> MixedRecipe:
    return MixedRecipe(steelyard.recipes.get(name), tuple(trained.OVERRIDES.items()))


def _inside(recipe: MixedRecipe) -> MixedRecipe:
    return MixedRecipe(recipe.default, tuple((STEP + layer, own) for layer, own in recipe.overrides))


def _prompt(net, tokens: torch.Tensor) -> Contender:
    return Contender(lambda: net(tokens, use_cache=False).logits)


def _step(model) -> tuple[tuple[torch.Tensor, ...], Step]:
    """A step that continues a text, and what it is called with."""
    config = model.config
    torch.manual_seed(0)
    shape = (1, config.num_key_value_heads, CACHED, config.hidden_size // config.num_attention_heads)
    caches = [torch.randn(shape) for _ in range(2 * config.num_hidden_layers)]
    return (torch.tensor([[5]]), torch.tensor([[CACHED]]), *caches), Step(model).eval()


def _frozen(net, arguments: tuple[torch.Tensor, ...]) -> Contender:
    frozen = net.freeze(*arguments)
    return Contender(lambda: frozen(*arguments))
