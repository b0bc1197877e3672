"""What the tests of jets share: Taylor coefficients by nested torch.func.jacfwd."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import jacfwd

from pyg_kpnn.jets import JetSpace


def _taylor(function: Callable[[Tensor], Tensor], x: Tensor, space: JetSpace) -> Tensor:
    """Rows D^α f / α! of f, a function of one point x (n_vars,)."""
    tensors = []
    for _ in range(space.order + 1):
        tensors.append(function(x))
        function = jacfwd(function)
    rows = []
    for alpha in space.indices:
        variables = [v for v, times in enumerate(alpha) for _ in range(times)]
        rows.append(tensors[len(variables)][(..., *variables)] / math.prod(map(math.factorial, alpha)))
    return torch.stack(rows)


@pytest.fixture
def taylor() -> Callable[..., Tensor]:
    return _taylor


@pytest.fixture
def gen() -> torch.Generator:
    return torch.Generator().manual_seed(7)
