"""A model as Steelyard and its peers run it. What a peer needs is imported when the peer is made."""

import contextlib
import copy
import functools
import io
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from contest import Contender
from torch import nn

import steelyard

Inputs = tuple[torch.Tensor, ...]
RECIPES = ("fp8-current", "mxfp8", "nvfp4")
TORCHAO = ("MXFP8", "NVFP4", "NVFP4 weights", "int8 weights")
OPENVINO = ("FP8_E4M3", "MXFP8_E4M3", "MXFP4", "NVFP4")


def eager(model: nn.Module, inputs: Inputs) -> Contender:
    """The model in eager torch."""
    return Contender(lambda: model(*inputs), nbytes(model))


def eager_bf16(model: nn.Module, inputs: Inputs) -> Contender:
    """torch in bfloat16."""
    low = copy.deepcopy(model).bfloat16()
    low_inputs = _to_bfloat16(inputs)
    return Contender(lambda: low(*low_inputs), nbytes(low))


def inductor(model: nn.Module, inputs: Inputs) -> Contender:
    """torch.compile in float32."""
    compiled = torch.compile(model)
    return Contender(lambda: compiled(*inputs), nbytes(model))


def ours(model: nn.Module, inputs: Inputs, recipe: str) -> Contender:
    """The model compiled by a recipe; it holds the parameters beside the quantized weights."""
    net = steelyard.compile(model, recipe).lower(*inputs)
    net(*inputs)
    memory = net.memory()
    return Contender(lambda: net(*inputs), memory["parameters"] + memory["quantized_weights"])


def scaled_mm(model: nn.Module, inputs: Inputs) -> Contender:
    """torch._scaled_mm: E4M3 with one scale per tensor."""
    low = _replace_linears(copy.deepcopy(model), _ScaledMatmulLinear)
    return Contender(lambda: low(*inputs), nbytes(low))


def torchao(model: nn.Module, inputs: Inputs, kind: str) -> Contender:
    """torchao's linears, with the kernels that it has for CPUs; all but "int8 weights" compute in bfloat16."""
    from torchao.quantization import quantize_

    low = copy.deepcopy(model)
    if kind != "int8 weights":
        low, inputs = low.bfloat16(), _to_bfloat16(inputs)
    quantize_(low, _torchao_config(kind))
    return Contender(lambda: low(*inputs), nbytes(low))


def _torchao_config(kind: str) -> Any:
    from torchao.prototype.mx_formats import inference_workflow as workflow
    from torchao.quantization import Int8WeightOnlyConfig
    from torchao.quantization.quantize_.common import KernelPreference

    if kind == "MXFP8":
        return workflow.MXDynamicActivationMXWeightConfig(kernel_preference=KernelPreference.EMULATED)
    if kind == "NVFP4 weights":
        return workflow.NVFP4WeightOnlyConfig()
    if kind == "NVFP4":
        return workflow.NVFP4DynamicActivationNVFP4WeightConfig()
    return Int8WeightOnlyConfig()


def openvino(model: nn.Module, inputs: Inputs, mode: str) -> Contender:
    """OpenVINO with weights that NNCF compressed; activations stay in float32."""
    import openvino as ov

    compressed = _compressed(model, inputs, mode)
    held = sum(op.get_byte_size() for op in compressed.get_ops() if op.get_type_name() == "Constant")
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    request = ov.Core().compile_model(compressed, "CPU", settings).create_infer_request()
    arrays = [tensor.numpy() for tensor in inputs]

    def run() -> torch.Tensor:
        return torch.from_numpy(request.infer(arrays, share_inputs=True, share_outputs=True)[0])

    return Contender(run, held)


@functools.cache
def _compressed(model: nn.Module, inputs: Inputs, mode: str) -> Any:
    """Takes a minute for a model of 30 layers, whatever the number of threads it will run with."""
    import nncf
    import openvino as ov

    nncf.set_log_level(logging.ERROR)
    group = {"NVFP4": 16, "FP8_E4M3": -1}.get(mode, 32)
    chosen = getattr(nncf.CompressWeightsMode, mode)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():  # It prints progress of its own.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        converted = ov.convert_model(model, example_input=inputs)
        return nncf.compress_weights(converted, mode=chosen, group_size=group, ratio=1.0, all_layers=True)


def llama_cpp(file: str, read: list[int], tokens: list[int]) -> Contender:
    """llama.cpp on a GGUF file: each call goes back to the cache of what was read; logits of all tokens."""
    from llama_cpp import Llama

    threads = torch.get_num_threads()
    size = len(read) + len(tokens)
    options = {"n_ctx": size, "n_batch": size, "n_ubatch": size, "n_threads": threads, "n_threads_batch": threads}
    model = Llama(file, logits_all=True, verbose=False, **options)
    if read:
        model.eval(read)

    def run() -> torch.Tensor:
        model.n_tokens = len(read)
        model.eval(tokens)
        return torch.from_numpy(model.scores[len(read) : size].copy())

    return Contender(run, Path(file).stat().st_size)


def nbytes(model: nn.Module) -> int:
    """Bytes of a model's tensors, the parts of quantized ones counted."""
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return sum(_tensor_bytes(tensor) for tensor in tensors.values())


def _tensor_bytes(tensor: torch.Tensor) -> int:
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.numel() * tensor.element_size()
    names, _ = tensor.__tensor_flatten__()  # pyright: ignore[reportAttributeAccessIssue]
    return sum(_tensor_bytes(getattr(tensor, name)) for name in names)


def _to_bfloat16(inputs: Inputs) -> Inputs:
    return tuple(tensor.bfloat16() if tensor.is_floating_point() else tensor for tensor in inputs)


def _replace_linears(model: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                setattr(parent, name, make(child))
    return model


class _ScaledMatmulLinear(nn.Module):
    def __init__(self, linear: nn.Linear):
        super().__init__()
        codes, scale = _quantize(linear.weight.detach())
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes, scale = _quantize(x.reshape(-1, x.shape[-1]))
        y = torch._scaled_mm(codes, self.codes.t(), scale, self.scale, out_dtype=torch.float32)
        return y.view(*x.shape[:-1], -1) if self.bias is None else y.view(*x.shape[:-1], -1) + self.bias


def _quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax() / 448
    return (x / scale).to(torch.float8_e4m3fn), scale


def linears(count: int, width: int) -> nn.Module:
    """A stack of linears: several of them, so that no cache holds their weights from one call to the next."""
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count))).eval()
