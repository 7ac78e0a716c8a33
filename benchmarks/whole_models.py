"""Whole models beside eager torch, inductor and the peers that run them: a GPT forward and a decoding step."""

from functools import partial

import peers
import torch
from contest import compete, contest_table
from machine import thread_counts
from models import GPT, LlamaDecoder, millions
from report import Table


def measure(quick: bool = False) -> Table:
    """One row per contender, model and number of threads."""
    table = contest_table("Whole models, inference", "eager fp32")
    if quick:
        table.notes.append("Quick: without inductor, bf16, torchao's NVFP4 and OpenVINO's MXFP4.")
    counts = (1,) if quick else thread_counts()
    for threads in counts:
        _gpt(table, threads, quick)
    for threads in counts:
        _decoder(table, threads, quick)
    return table


def _gpt(table: Table, threads: int, quick: bool) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = (GPT(layers=2) if quick else GPT()).eval()
    inputs = (torch.randint(0, 8192, (1, 128 if quick else 512)),)
    makers = {
        "eager fp32": partial(peers.eager, model, inputs),
        **{f"steelyard {recipe}": partial(peers.ours, model, inputs, recipe) for recipe in peers.RECIPES},
    }
    if not quick:
        makers["inductor fp32"] = partial(peers.inductor, model, inputs)
        makers["eager bf16"] = partial(peers.eager_bf16, model, inputs)
    work = f"GPT {len(model.blocks)} x 768, {inputs[0].shape[1]} tokens"
    aims = {"steelyard mxfp8": 1.15, "steelyard nvfp4": 1.75}
    compete(table, work, threads, makers, calls=9, seconds=0.5 if quick else 3.0, aims=aims)


def _decoder(table: Table, threads: int, quick: bool) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = (LlamaDecoder(layers=2, vocabulary=4096) if quick else LlamaDecoder()).eval()
    inputs = model.inputs(cached=128)
    makers = {
        "eager fp32": partial(peers.eager, model, inputs),
        **{f"steelyard {recipe}": partial(peers.ours, model, inputs, recipe) for recipe in peers.RECIPES},
        "torchao int8 weights": partial(peers.torchao, model, inputs, "int8 weights"),
        "OpenVINO NVFP4 weights": partial(peers.openvino, model, inputs, "NVFP4"),
    }
    if not quick:
        makers["inductor fp32"] = partial(peers.inductor, model, inputs)
        makers["torchao NVFP4 weights"] = partial(peers.torchao, model, inputs, "NVFP4 weights")
        makers["OpenVINO MXFP4 weights"] = partial(peers.openvino, model, inputs, "MXFP4")
    work = f"Llama decode, {millions(model)}, 1 token"
    aims = {"steelyard nvfp4": 3.0}
    compete(table, work, threads, makers, calls=25, seconds=0.5 if quick else 3.0, aims=aims)
