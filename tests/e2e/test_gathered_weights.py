"""Weights that FSDP2 gathers are quantized at every call: their memory is filled again without a new version."""

import pytest
import torch
import torch.distributed as dist
from oracle import assert_follows, make_oracle
from small_models import make_mlp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import steelyard

WEIGHT_SHAPES = [(131, 37), (70, 131), (10, 70)]


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@torch.no_grad()
def test_gathered_weights_are_quantized_at_every_call(mesh, quantized_shapes):
    model, arguments = make_mlp()
    plain, x = make_mlp()[0], arguments["input"]
    plain.load_state_dict(model.state_dict())
    # The last layer is not sharded: its weight is kept.
    fully_shard(model[0], mesh=mesh)
    fully_shard(model[2], mesh=mesh)
    net = steelyard.compile(model, "mxfp8")
    for _ in range(3):
        got = net(x)
    assert_follows(got, make_oracle(plain, "mxfp8")(x), plain(x))
    assert [quantized_shapes.count(shape) for shape in WEIGHT_SHAPES] == [3, 3, 1]
    # A single word: the sampling that finds silent writes may miss it.
    model[0].weight.numpy()[77, 5] = plain[0].weight.numpy()[77, 5] = 300.0
    assert_follows(net(x), make_oracle(plain, "mxfp8")(x), plain(x))
