"""Reading a quantized checkpoint, beside safetensors' own reader and a copy of what it maps."""

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from contest import Contender, compete, contest_table
from report import Table

RECIPES = {"nvfp4": "nvfp4/none", "fp8 per channel": "fp8-row"}
AIM = 1 / 1.3
"""At most 1.3 times as long."""
_PEAK = """
import sys
import torch, transformers, steelyard.checkpoints.parameters
from steelyard.checkpoints.catalog import read_catalog
from steelyard.checkpoints.loading import load_model
from steelyard.checkpoints.methods.choice import read_plan
def peak(): return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
catalog = read_catalog(sys.argv[1])
plan = read_plan(catalog)
before = peak()
model = load_model(catalog, plan)
print(peak() - before)
"""


def measure(quick: bool = False) -> Table:
    """One row per contender and format."""
    held = "growth of the process's largest size while the model is built and its weights are read"
    table = contest_table("Reading the tensors of a quantized Llama", "safetensors and a copy", held)
    table.notes.append("Without imports and building the model. The files are in the page cache.")
    with tempfile.TemporaryDirectory() as folder:
        plain = _write_plain(Path(folder), quick)
        for name, recipe in RECIPES.items():
            made = _convert(plain, Path(folder) / name.replace(" ", "-"), recipe)
            size = sum(file.stat().st_size for file in made.glob("*.safetensors"))
            makers = {"safetensors and a copy": partial(_safetensors, made), "steelyard": partial(_steelyard, made)}
            work = f"{name}, {size / 1e6:.0f} MB"
            compete(table, work, 1, makers, calls=9, seconds=1.0 if quick else 5.0, aims={"steelyard": AIM})
    return table


def _write_plain(folder: Path, quick: bool) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers = (512, 4) if quick else (2048, 16)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        vocab_size=4096,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / "plain")
    return folder / "plain"


def _convert(plain: Path, folder: Path, recipe: str) -> Path:
    from steelyard.checkpoints.conversion import convert

    for _ in convert(plain, folder, recipe):
        pass
    return folder


def _safetensors(folder: Path) -> Contender:
    from safetensors.torch import load_file

    def run() -> torch.Tensor:
        tensors = [load_file(file) for file in sorted(folder.glob("*.safetensors"))]
        copies = [tensor.clone() for each in tensors for tensor in each.values()]
        return torch.tensor(float(sum(tensor.nbytes for tensor in copies)))

    return Contender(run)


def _steelyard(folder: Path) -> Contender:
    from steelyard.checkpoints.catalog import read_catalog
    from steelyard.checkpoints.loading import empty_model, read_tensors
    from steelyard.checkpoints.methods.choice import read_plan
    from steelyard.checkpoints.models import find_targets

    catalog = read_catalog(folder)
    plan = read_plan(catalog)
    model = empty_model(catalog, None)
    targets = find_targets(model, catalog, plan)
    size = float(sum(entry.size for entry in catalog.values()))

    def run() -> torch.Tensor:
        tensors = dict(read_tensors(model, targets))
        assert len(tensors) == len(targets)
        return torch.tensor(size)

    done = subprocess.run([sys.executable, "-c", _PEAK, str(folder)], capture_output=True, text=True, check=True)
    return Contender(run, int(done.stdout.split()[-1]))
