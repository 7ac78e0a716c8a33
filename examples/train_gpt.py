"""Train a small GPT on the sources of Python's standard library, byte by byte, in fp32 and by every recipe.

    python examples/train_gpt.py --steps 600 --recipes fp32 mxfp8 nvfp4 --out out/train_gpt

All runs start from the same weights and see the same batches in the same order. A run that was stopped continues from
its last checkpoint, and one that is done is not repeated. Writes a table of final losses, a plot of the curves, and all
numbers.
"""

import argparse
import json
import math
import sys
import sysconfig
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import steelyard
from steelyard import recipes

RECIPES = ("fp32", *recipes.NAMES)
SAVE_EVERY = 50


@dataclass(frozen=True)
class Settings:
    """A model, its data and its schedule."""

    steps: int = 600
    width: int = 192
    layers: int = 6
    heads: int = 6
    length: int = 128
    batch: int = 8
    rate: float = 5e-4
    validation_batches: int = 16
    evaluate_every: int = 50


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and with a residual."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, length, width] to the same shape."""
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Maps bytes to logits of the next byte."""

    def __init__(self, settings: Settings):
        super().__init__()
        self.tokens = nn.Embedding(256, settings.width)
        self.positions = nn.Embedding(settings.length, settings.width)
        self.blocks = nn.ModuleList(Block(settings.width, settings.heads) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.width)
        self.head = nn.Linear(settings.width, 256, bias=False)
        self.apply(_initialize)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Maps [batch, length] to [batch, length, 256]."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def read_sources() -> tuple[torch.Tensor, torch.Tensor]:
    """The standard library's modules as bytes: nine of ten files to train on, the tenth to validate."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8) for file in files if file.stat().st_size]
    validation = [text for i, text in enumerate(texts) if i % 10 == 9]
    return torch.cat([text for i, text in enumerate(texts) if i % 10 != 9]), torch.cat(validation)


def draw(text: torch.Tensor, settings: Settings, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch with a number, the same in every run: bytes, and the bytes after them."""
    generator = torch.Generator().manual_seed(number)
    starts = torch.randint(0, len(text) - settings.length - 1, (settings.batch,), generator=generator)
    rows = torch.stack([text[start : start + settings.length + 1] for start in starts]).long()
    return rows[:, :-1], rows[:, 1:]


def loss_of(net: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The mean cross entropy of the next byte, in nats."""
    tokens, targets = batch
    return functional.cross_entropy(net(tokens).flatten(0, 1), targets.flatten())


@torch.no_grad()
def validate(net: nn.Module, text: torch.Tensor, settings: Settings) -> float:
    """The loss on text that no training step has seen."""
    losses = [loss_of(net, draw(text, settings, number)) for number in range(settings.validation_batches)]
    return torch.stack(losses).mean().item()


class Run:
    """One recipe's training, saved as it goes."""

    def __init__(self, recipe: str, settings: Settings, folder: Path):
        self.recipe, self.settings = recipe, settings
        self.path = folder / f"{recipe}.pt"
        torch.manual_seed(0)
        model = GPT(settings)
        self.net = model if recipe == "fp32" else steelyard.compile(model, recipe)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=settings.rate, weight_decay=0.1)
        self.step, self.seconds = 0, 0.0
        self.train: list[float] = []
        self.validation: list[tuple[int, float]] = []
        if self.path.exists():
            self._load()

    def go_on(self, until: int | None = None) -> None:
        """Train up to a step: the last by default."""
        text, unseen = read_sources()
        until = self.settings.steps if until is None else until
        while self.step < until:
            start = time.perf_counter()
            self.train.append(self._train_step(draw(text, self.settings, 1_000_000 + self.step)))
            self.seconds += time.perf_counter() - start
            self.step += 1
            if self.step % self.settings.evaluate_every == 0 or self.step == self.settings.steps:
                self.validation.append((self.step, validate(self.net, unseen, self.settings)))
            if self.step % SAVE_EVERY == 0 or self.step == until:
                self._save()
            self._show_progress()

    def _train_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate * self._rate_factor()
        self.optimizer.zero_grad()
        loss = loss_of(self.net, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def _rate_factor(self) -> float:
        """Rises over the first twentieth of the steps, then falls along a cosine to a tenth."""
        warmup = max(1, self.settings.steps // 20)
        if self.step < warmup:
            return (self.step + 1) / warmup
        done = (self.step - warmup) / max(1, self.settings.steps - warmup)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * done))

    def _save(self) -> None:
        names = ("step", "seconds", "train", "validation")
        state = {name: getattr(self, name) for name in names} | {"settings": asdict(self.settings)}
        state |= {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        temporary = self.path.with_suffix(".new")
        torch.save(state, temporary)
        temporary.replace(self.path)

    def _load(self) -> None:
        state = torch.load(self.path)
        if state.pop("settings") != asdict(self.settings):
            raise SystemExit(f"{self.path} holds a run with other settings: choose another --out, or delete the file")
        self.net.load_state_dict(state.pop("net"))
        self.optimizer.load_state_dict(state.pop("optimizer"))
        for name, value in state.items():
            setattr(self, name, value)

    def _show_progress(self) -> None:
        if not sys.stderr.isatty() and self.step % SAVE_EVERY:
            return
        filled = 30 * self.step // self.settings.steps
        bar = "#" * filled + "." * (30 - filled)
        text = f"{self.recipe:12} [{bar}] {self.step}/{self.settings.steps}  loss {self.train[-1]:.3f}"
        done = self.step == self.settings.steps or not sys.stderr.isatty()
        print(f"\r{text}", end="\n" if done else "", file=sys.stderr, flush=True)


def make_table(runs: list[Run]) -> str:
    """Final losses, relative to fp32 if it is among the runs."""
    exact = next((run.validation[-1][1] for run in runs if run.recipe == "fp32"), None)
    lines = ["| recipe | training loss | validation loss | loss against fp32 | s/step |", "|---|---|---|---|---|"]
    for run in runs:
        tail = run.train[-min(50, len(run.train)) :]
        final = run.validation[-1][1]
        against = f"{100 * (final / exact - 1):+.2f} %" if exact else ""
        cells = [run.recipe, f"{sum(tail) / len(tail):.4f}", f"{final:.4f}", against, f"{run.seconds / run.step:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw_curves(runs: list[Run], path: Path) -> None:
    """Plot the validation losses over the steps."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: it needs matplotlib", file=sys.stderr)
        return
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="validation loss (nats per byte)")
    for run in runs:
        axes.plot(*zip(*run.validation, strict=True), label=run.recipe, linewidth=2.5 if run.recipe == "fp32" else 1.2)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen recipes, and write the table, the plot and the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES), metavar="RECIPE")
    parser.add_argument("--out", type=Path, default=Path("out/train_gpt"), help="folder of checkpoints and results")
    for name, default in asdict(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    options = vars(parser.parse_args(arguments))
    chosen, folder = options.pop("recipes"), options.pop("out")
    settings = Settings(**options)
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for recipe in chosen:
        run = Run(recipe, settings, folder)
        run.go_on()
        runs.append(run)
    table = make_table(runs)
    count = sum(parameter.numel() for parameter in runs[0].net.parameters())
    title = f"{count / 1e6:.2f} M parameters, {settings.steps} steps of {settings.batch * settings.length} bytes\n\n"
    (folder / "losses.md").write_text(title + table)
    figures = {run.recipe: {"train": run.train, "validation": run.validation} for run in runs}
    (folder / "losses.json").write_text(json.dumps({"settings": asdict(settings), "runs": figures}) + "\n")
    draw_curves(runs, folder / "curves.png")
    print(title + table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
