import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# JAX reads this when it makes its first array, which no other conftest does.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
tests = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(tests / "runtime")]

# `make test` installs jax; without it there is nothing to test here.
collect_ignore_glob = [] if find_spec("jax") else ["test_*.py"]
