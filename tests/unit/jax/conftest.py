import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
tests = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(tests / "runtime")]
