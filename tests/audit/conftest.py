"""Networks, and samples whose targets follow from the parents in a network."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from pyg_kpnn.prior import PriorGraph


def network(nodes: int, edges: int, seed: int) -> PriorGraph:
    """Random edges between different nodes."""
    pairs = [(f"g{s:02d}", f"g{t:02d}") for s in range(nodes) for t in range(nodes) if s != t]
    chosen = np.random.default_rng(seed).choice(len(pairs), edges, replace=False)
    return PriorGraph.from_edges([pairs[i] for i in chosen], nodes=[f"g{i:02d}" for i in range(nodes)])


def simulate(truth: PriorGraph, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Values of all nodes, and what they become: a saturating sum over the parents in ``truth``, plus noise.

    Every node has a gain of its own, half of them negative.
    """
    rng = np.random.default_rng(seed)
    nodes = truth.num_nodes
    x = rng.normal(size=(samples, nodes))
    gain = rng.choice([-1.0, 1.0], nodes) * rng.uniform(1.0, 2.0, nodes)
    parents = truth.to_mask().numpy()  # (target, source)
    parents = parents / np.sqrt(np.maximum(parents.sum(1, keepdims=True), 1.0))
    y = np.tanh(x * gain) @ parents.T + 0.5 * rng.normal(size=(samples, nodes))
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.float32))


@pytest.fixture(scope="session")
def made() -> tuple[Callable[..., PriorGraph], Callable[..., tuple[Tensor, Tensor]]]:
    """``network`` and ``simulate``."""
    return network, simulate
