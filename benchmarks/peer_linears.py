"""Linears beside those of the peers, quantization of the activation included."""

from functools import partial

import peers
import torch
from contest import compete, contest_table
from machine import thread_counts
from report import Table


def measure(quick: bool = False) -> Table:
    """One row per contender, number of rows and number of threads."""
    width, stack = (1024, 4) if quick else (2048, 16)
    table = contest_table(f"Linears of {width} x {width} beside peers", "torch fp32")
    for threads in (1,) if quick else thread_counts():
        for rows, count in ((1, stack), (256, 1)):
            _row(table, threads, rows, count, width, seconds=0.5 if quick else 3.0)
    return table


def _row(table: Table, threads: int, rows: int, count: int, width: int, seconds: float) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = peers.linears(count, width)
    inputs = (torch.randn(rows, width),)
    makers = {
        "torch fp32": partial(peers.eager, model, inputs),
        **{f"steelyard {recipe}": partial(peers.ours, model, inputs, recipe) for recipe in peers.RECIPES},
        "torch bf16": partial(peers.eager_bf16, model, inputs),
        "torch._scaled_mm E4M3": partial(peers.scaled_mm, model, inputs),
        **{f"torchao {kind}": partial(peers.torchao, model, inputs, kind) for kind in peers.TORCHAO},
        **{f"OpenVINO {mode} weights": partial(peers.openvino, model, inputs, mode) for mode in peers.OPENVINO},
    }
    compete(table, f"M={rows}, {count} linear{'s' if count > 1 else ''}", threads, makers, calls=25, seconds=seconds)
