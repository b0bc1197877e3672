"""What both benchmark scripts need: graphs, layers, a line about the machine, a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch
from torch import Tensor

import pyg_kpnn


def power_law_edges(num_nodes: int, num_edges: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Distinct (source, target) pairs of a graph with hubs, ordered by source, then target.

    End points are drawn with probability proportional to rank ** -0.8 (sources) and
    rank ** -0.4 (targets), ranks shuffled separately: few nodes regulate many, as in gene
    regulatory networks, and in-degrees vary less than out-degrees.
    """
    if num_edges > num_nodes**2 // 4:
        raise SystemExit(f"{num_edges} distinct edges are too many to draw among {num_nodes} nodes.")
    random = np.random.default_rng(seed)
    rank = np.arange(1, num_nodes + 1, dtype=np.float64)
    chance = [power / power.sum() for power in (rank**-0.8, rank**-0.4)]
    names = [random.permutation(num_nodes) for _ in range(2)]
    pairs = np.empty(0, dtype=np.int64)
    while pairs.size < num_edges:
        ends = [name[random.choice(num_nodes, num_edges, p=p)] for name, p in zip(names, chance, strict=True)]
        pairs = np.unique(np.concatenate([pairs, ends[0] * num_nodes + ends[1]]))
    pairs = np.sort(random.choice(pairs, num_edges, replace=False))
    return torch.from_numpy(pairs // num_nodes), torch.from_numpy(pairs % num_nodes)


def usable_backends() -> list[str]:
    """Backends of ours that are installed here, without the dense oracle."""
    return [name for name, (there, _) in pyg_kpnn.backends().items() if there and name != "reference"]


def skipped_backends() -> list[str]:
    """One line for each backend that is not installed."""
    return [f"skipped {name}: {why}" for name, (there, why) in pyg_kpnn.backends().items() if not there]


def version_of(package: str) -> str | None:
    """Installed version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def environment() -> str:
    """One line: processor, threads, versions."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    packages = ("torch_geometric", "torch_scatter", "kpnn2")
    versions = [f"{name} {found}" for name in packages if (found := version_of(name))]
    return ", ".join(
        [
            f"{cores} cores with {torch.backends.cpu.get_cpu_capability()}",
            f"{torch.get_num_threads()} threads",
            f"torch {torch.__version__}",
            *versions,
            f"pyg_kpnn {pyg_kpnn.__version__}",
        ]
    )


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others numbers."""
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
