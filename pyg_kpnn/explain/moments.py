"""Mean and variance of what comes a batch at a time, merged without loss."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Moments"]

_BLOCK_BYTES = 2**25  # float64 copies of weights in use at a time


class Moments:
    """Running count, mean and sum of squared deviations of ``(E, H)`` values, in float64 on the CPU.

    Batches are merged by the rule of Chan, Golub and LeVeque (1979), which takes no difference of large
    sums. Entries of a batch may be left out an edge at a time.

    Examples
    --------
    >>> moments = Moments(1, 1)
    >>> moments.add(torch.tensor([[[1.0]], [[2.0]]]), None)
    >>> moments.add(torch.tensor([[[6.0]]]), None)
    >>> moments.mean.item(), moments.variance().item(), moments.count.tolist()
    (3.0, 7.0, [3])
    """

    def __init__(self, edges: int, heads: int) -> None:
        self.count = torch.zeros(edges, dtype=torch.int64, device="cpu")
        self.mean = torch.zeros(edges, heads, dtype=torch.float64, device="cpu")
        self.squares = torch.zeros(edges, heads, dtype=torch.float64, device="cpu")

    def add(self, values: Tensor, live: Tensor | None) -> None:
        """Take in ``values`` ``(B, E, H)``; ``live`` ``(B, E)`` bool says which entries count."""
        samples, edges, heads = values.shape
        step = max(1, _BLOCK_BYTES // (8 * samples * heads))
        for start in range(0, edges, step):
            some = slice(start, start + step)
            part = values[:, some].double()
            if live is None:
                count = torch.full(part.shape[1:2], samples, device=part.device)
                mean = part.mean(0)
                squares = (part - mean).square_().sum(0)
            else:
                here = live[:, some]
                count = here.sum(0)
                part = part.masked_fill(~here.unsqueeze(-1), 0.0)
                mean = part.sum(0) / count.clamp(min=1).unsqueeze(-1)
                squares = (part - mean).square_().masked_fill_(~here.unsqueeze(-1), 0.0).sum(0)
            self._merge(some, count.cpu(), mean.cpu(), squares.cpu())

    def _merge(self, some: slice, count: Tensor, mean: Tensor, squares: Tensor) -> None:
        before = self.count[some]
        # int64 over int64 would be float32
        share = (count.double() / (before + count).clamp(min=1)).unsqueeze(-1)
        step = mean - self.mean[some]
        self.squares[some] += squares + step.square() * share * before.unsqueeze(-1)
        self.mean[some] += step * share
        self.count[some] += count

    def means(self) -> Tensor:
        """``(E, H)``, NaN where nothing counted."""
        return self.mean.masked_fill((self.count == 0).unsqueeze(-1), torch.nan)

    def variance(self) -> Tensor:
        """``(E, H)`` with n - 1 below, NaN where fewer than two counted."""
        below = (self.count - 1).unsqueeze(-1)
        return (self.squares / below.clamp(min=1)).masked_fill(below < 1, torch.nan)
