"""Processes of a process group that run one file, and what each of them saves."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WORLD_SIZE = 2


def start_ranks(file: str, folder: Path, *arguments: str) -> list[dict]:
    """Run a file in each rank, with a folder and more as arguments; returns what `save_results` left there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = []
    for rank in range(WORLD_SIZE):
        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE), "MASTER_PORT": port}
        environment["MASTER_ADDR"] = "127.0.0.1"
        processes.append(subprocess.Popen([sys.executable, file, str(folder), *arguments], env=environment))
    assert [process.wait(timeout=600) for process in processes] == [0] * WORLD_SIZE
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD_SIZE)]


def save_results(compute: Callable[[], dict[str, Any]], folder: str) -> None:
    """In a rank: compute in a process group, and save the results."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.save(compute(), Path(folder, f"{dist.get_rank()}.pt"))
    dist.barrier()
    dist.destroy_process_group()
