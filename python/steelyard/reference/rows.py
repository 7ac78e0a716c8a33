"""What kernels compute of whole rows, and what they find by number: in float64, rounded once."""

import torch


def row_sum(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The sum of each row."""
    return x.double().sum(-1).float().to(dtype)


def row_mean(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mean of each row."""
    return x.double().mean(-1).float().to(dtype)


def column_sum(x: torch.Tensor, dims: int, dtype: torch.dtype) -> torch.Tensor:
    """The sum over the first dims."""
    return x.double().sum(tuple(range(dims))).float().to(dtype)


def column_mean(x: torch.Tensor, dims: int, dtype: torch.dtype) -> torch.Tensor:
    """The mean over the first dims."""
    return x.double().mean(tuple(range(dims))).float().to(dtype)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """The shares of e^x in their sum, for each row; what is subtracted first changes nothing but the range."""
    values = x.double()
    powers = (values - values.amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)).float().to(x.dtype)


def layer_norm(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    """Each row around its mean, over its deviation."""
    values = x.double()
    centered = values - values.mean(-1, keepdim=True)
    return _scaled(centered, weight, bias, epsilon).float().to(x.dtype)


def layer_norm_statistics(x: torch.Tensor, epsilon: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of each row, and one over its deviation."""
    values = x.double()
    mean = values.mean(-1, keepdim=True)
    rstd = 1 / ((values - mean).square().mean(-1, keepdim=True) + epsilon).sqrt()
    return mean.float().to(dtype), rstd.float().to(dtype)


def layer_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of a layer norm by its source, its weight and its bias, in float64."""
    given, normal = grad.double(), (x.double() - mean.double()) * rstd.double()
    scaled = given if weight is None else given * weight.double()
    centered = scaled - scaled.mean(-1, keepdim=True) - normal * (scaled * normal).mean(-1, keepdim=True)
    rows = tuple(range(x.dim() - 1))
    return centered * rstd.double(), (given * normal).sum(rows), given.sum(rows)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    """Each row over the root of its mean square."""
    return _scaled(x.double(), weight, None, epsilon).float().to(x.dtype)


def _scaled(
    values: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, epsilon: float
) -> torch.Tensor:
    normal = values / (values.square().mean(-1, keepdim=True) + epsilon).sqrt()
    normal = normal if weight is None else normal * weight.double()
    return normal if bias is None else normal + bias.double()


def lookup(table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The row of a table for each index."""
    rows = [table[int(index)] for index in indices.flatten()]
    shape = (*indices.shape, table.shape[1])
    return torch.stack(rows).view(shape) if rows else table.new_empty(shape)


def add_rows(rows: torch.Tensor, indices: torch.Tensor, count: int, padding: int = -1) -> torch.Tensor:
    """A table of zeros to which rows are added, one after the other, each sum rounded; not those of `padding`."""
    made = rows.new_zeros((count, rows.shape[-1]))
    for index, row in zip(indices.flatten().tolist(), rows.reshape(-1, rows.shape[-1]), strict=True):
        if index != padding:
            made[index] = (made[index].float() + row.float()).to(rows.dtype)
    return made


def write_rows(target: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor, dim: int) -> torch.Tensor:
    """A copy of a tensor with entries along a dim replaced, one after the other."""
    made = target.clone()
    for number, index in enumerate(indices.flatten()):
        made.select(dim, int(index)).copy_(rows.select(dim, number))
    return made
