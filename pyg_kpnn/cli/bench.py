"""``pyg-kpnn bench`` and ``info``: what is here, and how fast."""

from __future__ import annotations

import platform
import time
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import torch

from .. import __version__
from ..errors import PriorGraphError
from ..ops import EdgeLayout, backends, edge_attention

__all__ = ["compare_backends", "environment"]

_PACKAGES = (
    "torch", "torch-geometric", "torch-scatter", "networkx", "pandas", "numpy", "anndata", "captum",
    "huggingface-hub", "lightning", "matplotlib", "plotly", "pyarrow", "safetensors",
)  # fmt: skip


def environment() -> dict[str, dict[str, Any]]:
    """Versions, backends and machine, each a table."""
    packages = {"pyg_kpnn": __version__}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    machine = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }
    found = {name: "yes" if status.available else status.reason for name, status in backends().items()}
    return {"packages": packages, "backends": found, "machine": machine}


def compare_backends(
    nodes: int, edges: int, samples: int, heads: int, head_dim: int, rounds: int
) -> list[dict[str, Any]]:
    """Median times, backends in turns; ``× torch`` is the median of ratios within a round."""
    sizes = {"nodes": nodes, "edges": edges, "samples": samples, "heads": heads, "head-dim": head_dim}
    for name, size in {**sizes, "rounds": rounds}.items():
        if size < 1:
            raise PriorGraphError(f"--{name} must be at least 1. Got {size}.")
    generator = torch.Generator().manual_seed(0)
    layout = EdgeLayout(torch.randint(nodes, (2, edges), generator=generator), nodes, nodes)
    leaves = [
        torch.randn(samples, nodes, heads, head_dim, generator=generator).requires_grad_() for _ in range(3)
    ]
    names = [name for name, status in backends().items() if status.available and name != "reference"]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name in names:
            taken = _once(leaves, layout, name)
            if turn:  # the first round warms up
                times[name].append(taken)
    return [
        {
            "backend": name,
            "forward": 1e3 * median(forward for forward, _ in times[name]),
            "forward + backward": 1e3 * median(both for _, both in times[name]),
            "× torch": median(
                theirs / ours for (_, ours), (_, theirs) in zip(times[name], times["torch"], strict=True)
            ),
        }
        for name in names
    ]


def _once(leaves: list[torch.Tensor], layout: EdgeLayout, backend: str) -> tuple[float, float]:
    query, key, value = leaves
    begun = time.perf_counter()
    mixed, _ = edge_attention(query, key, value, layout, backend=backend)
    forward = time.perf_counter() - begun
    torch.autograd.grad(mixed.sum(), leaves)
    return forward, time.perf_counter() - begun
