"""A layer of experts, whose weights are a parameter of three dims."""

import torch
import transformers.integrations.moe  # noqa: F401  # It defines the op.
from torch import nn

EXPERTS, OUT, IN = 4, 40, 48


class Experts(nn.Module):
    def __init__(self, dtype=torch.float32, is_transposed=False, width=OUT):
        super().__init__()
        shape = (EXPERTS, IN, width) if is_transposed else (EXPERTS, width, IN)
        self.is_transposed = is_transposed
        self.weight = nn.Parameter(torch.randn(shape).to(dtype))

    def forward(self, x, ends):
        weight = self.weight if self.is_transposed else self.weight.transpose(-2, -1)
        if x.dtype == torch.bfloat16:
            return torch.nn.functional.grouped_mm(x, weight, offs=ends)
        return torch.ops.transformers.grouped_mm_fallback(x, weight, ends)


class Model(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.experts = Experts(**options)

    def forward(self, x, ends):
        return self.experts(x, ends)
