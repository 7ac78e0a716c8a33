"""`steelyard demo --small`: compile a small GPT by two recipes, and show the result."""

import statistics
import time

import torch
from torch import nn
from torch.nn import functional

import steelyard
from steelyard.tools.console import aligned, announce, indented, show

RECIPES = ("mxfp8", "nvfp4")
LAYER = "blocks.0.up"
STAGES = ("traced", "raised", "quantized")
BATCH, TOKENS, WIDTH, HEADS, VOCABULARY = 2, 128, 256, 4, 256
CALLS, FEWEST_CALLS, SECONDS = 15, 3, 2.0


class Block(nn.Module):
    """Attention and an MLP, each behind a layer norm."""

    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        heads = self.qkv(self.norm_1(x)).view(batch, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        attention = functional.scaled_dot_product_attention(*heads.unbind(), is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


@torch.no_grad()
def run(recipes: tuple[str, ...] = RECIPES) -> int:
    """Compile, compare and print, with a line before each step that takes a while."""
    torch.manual_seed(0)
    model = GPT().eval()
    tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS))
    expected = model(tokens)
    nets = {}
    for recipe in recipes:
        announce(f"compiling a GPT of {_millions(model)} M parameters: steelyard.compile(model, {recipe!r})")
        nets[recipe] = steelyard.compile(model, recipe)
        nets[recipe](tokens)
    announce("measuring each beside the model in fp32")
    comparison = _comparison(model, nets, tokens, expected)
    net = nets[recipes[0]]
    show(f"\nWhat became of each GEMM: print(net.explain())  [{recipes[0]}]\n")
    show(indented(net.explain()))
    for stage in STAGES:
        show(f'\nThe layer {LAYER}: print(net.ir("{stage}", layer="{LAYER}"))\n')
        show(indented(net.ir(stage, layer=LAYER)))
    show("\nBeside the model in fp32:\n")
    show(indented(comparison))
    return 0


def _comparison(model: nn.Module, nets: dict, tokens: torch.Tensor, expected: torch.Tensor) -> str:
    rows = [("", "output error", "linear weights", "speed, fp32 = 1")]
    fp32_bytes = sum(module.weight.numel() * 4 for module in model.modules() if isinstance(module, nn.Linear))
    times = _times({"fp32 eager": model, **nets}, tokens)
    rows.append(("fp32 eager", "", f"{fp32_bytes / 1e6:.2f} MB", "1.00"))
    for recipe, net in nets.items():
        error = ((net(tokens) - expected).norm() / expected.norm()).item()
        weight_bytes = net.memory()["quantized_weights"]
        size = f"{weight_bytes / 1e6:.2f} MB ({weight_bytes / fp32_bytes:.0%})"
        rows.append((recipe, f"{error:.1%}", size, f"{times['fp32 eager'] / times[recipe]:.2f}"))
    return aligned(rows)


def _times(nets: dict[str, nn.Module], tokens: torch.Tensor) -> dict[str, float]:
    """The median time per call of each, called in turns, fewer times where calls are slow."""
    times: dict[str, list[float]] = {name: [] for name in nets}
    end = time.perf_counter() + SECONDS
    for call in range(CALLS):
        if call >= FEWEST_CALLS and time.perf_counter() > end:
            break
        for name, net in nets.items():
            start = time.perf_counter()
            net(tokens)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def _millions(model: nn.Module) -> str:
    return f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f}"
