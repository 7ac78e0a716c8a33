"""What reads the tensors that kernels of compiled programs are called with."""

import torch

from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import ITEM_TYPES, flat

# In a module of its own: Python frees native objects only if nothing that they hold leads back to them.
TENSORS = _cpu.TensorReader(ITEM_TYPES, flat, torch.get_num_threads)
