"""Two processes train a model whose quantized parameters are sharded; it equals the unsharded run, byte for byte."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from steelyard.tensor import (
    Float8BlockQuantizer,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8RowQuantizer,
    MXFP4Quantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    QuantizedTensor,
)

E4M3 = torch.float8_e4m3fn
# One worker runs the ranks once, for all tests.
pytestmark = pytest.mark.xdist_group("fsdp")
WORLD_SIZE = 2
STEPS = 3
QUANTIZERS = {
    "delayed": lambda: Float8Quantizer(torch.tensor(64.0), torch.zeros(()), E4M3),
    "current": lambda: Float8CurrentScalingQuantizer(E4M3),
    "row": lambda: Float8RowQuantizer(E4M3, columnwise=False),
    "block": lambda: Float8BlockQuantizer(E4M3, block_scaling_dim=1),
    "tiles": lambda: Float8BlockQuantizer(E4M3, block_scaling_dim=2),
    "mxfp8": lambda: MXFP8Quantizer(E4M3),
    "mxfp8-tiles": lambda: MXFP8Quantizer(E4M3, with_2d_quantization=True),
    "mxfp4": lambda: MXFP4Quantizer(),
    "nvfp4": lambda: NVFP4Quantizer(),
    "nvfp4-rht": lambda: NVFP4Quantizer(with_rht=True),
    "nvfp4-tiles": lambda: NVFP4Quantizer(with_2d_quantization=True),
    "nvfp4-32": lambda: NVFP4Quantizer(block_size=32),
    "nvfp4-row": lambda: NVFP4Quantizer(row_scaled=True, columnwise=False),
}


def make_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 256), nn.GELU(), nn.Linear(256, 256))
    for layer in (model[0], model[2]):
        layer.weight = nn.Parameter(QUANTIZERS[name]()(layer.weight.detach()))
    return model


def train(model: nn.Module) -> list[float]:
    """Each process sees the same batch, so that the mean of their gradients is exactly the gradient."""
    # The steps must be large enough to move FP4 codes whose scales are powers of two.
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0, momentum=0.9)
    torch.manual_seed(1)
    losses = []
    for _ in range(STEPS):
        x, target = torch.randn(16, 96), torch.randn(16, 256)
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def parts_of(weight: QuantizedTensor) -> dict[str, torch.Tensor]:
    return {name: getattr(weight, name).clone() for name in weight.PARTS if getattr(weight, name) is not None}


def train_sharded(name: str) -> dict:
    model = make_model(name)
    for module in (model[0], model[2], model):
        fully_shard(module, mp_policy=MixedPrecisionPolicy())
    gathered = []
    hook = QuantizedTensor.fsdp_pre_all_gather

    def recording_hook(self, mesh, outer_size, outer_stride, module, mp_policy):
        inputs, metadata = hook(self, mesh, outer_size, outer_stride, module, mp_policy)
        gathered.append((self.numel(), len(metadata.columnwise), sum(each.nbytes for each in inputs)))
        return inputs, metadata

    QuantizedTensor.fsdp_pre_all_gather = recording_hook
    try:
        losses = train(model)
    finally:
        QuantizedTensor.fsdp_pre_all_gather = hook
    shards = [model[index].weight._local_tensor for index in (0, 2)]
    return {
        "losses": losses,
        "types": [type(shard).__name__ for shard in shards],
        "parts": [parts_of(shard) for shard in shards],
        "values": [shard.dequantize() for shard in shards],
        "gathered": gathered,
    }


def refusal_of_shards(quantizer) -> str:
    """The error of a parameter whose shards cannot be gathered."""
    layer = nn.Linear(128, 192)
    layer.weight = nn.Parameter(quantizer(layer.weight.detach()))
    fully_shard(layer)
    try:
        layer(torch.zeros(1, 128))
    except ValueError as error:
        return str(error)
    return ""


def work(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD_SIZE)
    results = {name: train_sharded(name) for name in QUANTIZERS}
    results["cut tiles"] = refusal_of_shards(QUANTIZERS["tiles"]())
    results["scales of columns"] = refusal_of_shards(Float8RowQuantizer(E4M3))
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("fsdp")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = []
    for rank in range(WORLD_SIZE):
        command = [sys.executable, __file__, str(rank), str(port), str(folder)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        workers.append(subprocess.Popen(command, env=environment, **pipes))
    try:
        outputs = [worker.communicate(timeout=120)[0].decode() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, output in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, output
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD_SIZE)]


@pytest.mark.parametrize("name", QUANTIZERS)
def test_sharded_training_equals_the_unsharded_run(name, sharded):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        check_against_unsharded(name, sharded)
    finally:
        torch.set_num_threads(threads)


def check_against_unsharded(name, sharded):
    model = make_model(name)
    before = [model[index].weight.dequantize() for index in (0, 2)]
    losses = train(model)
    for rank, results in enumerate(sharded):
        result = results[name]
        assert result["losses"] == losses
        for layer, index in enumerate((0, 2)):
            weight = model[index].weight
            assert result["types"][layer] == type(weight).__name__
            shard = weight.detach().chunk(WORLD_SIZE)[rank]
            assert not torch.equal(weight.dequantize(), before[layer])
            assert torch.equal(result["values"][layer], shard.dequantize())
            expected = parts_of(shard)
            assert result["parts"][layer].keys() == expected.keys()
            for part, tensor in expected.items():
                assert torch.equal(result["parts"][layer][part], tensor), part


@pytest.mark.parametrize("name", QUANTIZERS)
def test_codes_are_gathered_not_values(name, sharded):
    bits = 5 if "fp4" in name else 8.5
    for results in sharded:
        gathered = results[name]["gathered"]
        # Both layers, at least once per step.
        assert len(gathered) >= 2 * STEPS
        for numel, copies, sent in gathered:
            assert sent <= copies * numel * bits / 8 + 16


def test_transposable_weights_send_one_copy(sharded):
    for name in ("delayed", "current", "tiles", "mxfp8-tiles", "nvfp4-tiles"):
        assert {copies for _, copies, _ in sharded[0][name]["gathered"]} == {1}
    assert {copies for _, copies, _ in sharded[0]["mxfp8"]["gathered"]} == {2}


def test_shards_that_cut_tiles_are_refused(sharded):
    for results in sharded:
        assert "must have the same number of rows, a multiple of 128" in results["cut tiles"]
        assert "got 96; pad the parameter to 256 rows" in results["cut tiles"]


def test_scales_that_span_shards_are_refused(sharded):
    for results in sharded:
        assert "one scale per column; quantize it rowwise only" in results["scales of columns"]


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
