"""What the tests of the layers share: attention by loops, backends, a record of tensor sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@pytest.fixture
def attend() -> Callable[..., tuple[Tensor, Tensor]]:
    return sys.modules["layer_tester"].attend


class _LargestTensor(TorchDispatchMode):
    """Number of entries of the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.numel = max(self.numel, leaf.numel())
        return out


@pytest.fixture
def largest_tensor() -> type[_LargestTensor]:
    return _LargestTensor
