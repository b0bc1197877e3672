"""Random graphs and attention problems: by a seed for long sweeps, by hypothesis for small ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from pyg_kpnn.ops import EdgeLayout

Pairs = list[tuple[int, int]]  # (source, target)


def _some(rng: random.Random, sources: int, targets: int, share: float) -> Pairs:
    return [(s, t) for s in range(sources) for t in range(targets) if rng.random() < share]


def _cycle(rng: random.Random, sources: int, targets: int) -> Pairs:
    size = min(sources, targets)
    return [(i, (i + 1) % size) for i in range(size)]


def _components(rng: random.Random, sources: int, targets: int) -> Pairs:
    """Three sets of nodes that no edge joins; the last has none at all."""
    pairs = _some(rng, sources, targets, 0.7)
    return [(s, t) for s, t in pairs if s % 3 == t % 3 < 2]


def _parallel(rng: random.Random, sources: int, targets: int) -> Pairs:
    pairs = _some(rng, sources, targets, 0.3)
    return pairs + [rng.choice(pairs) for _ in range(rng.randrange(1, 6))] if pairs else []


KINDS: dict[str, Callable[[random.Random, int, int], Pairs]] = {
    "empty": lambda rng, s, t: [],
    "one": lambda rng, s, t: [(rng.randrange(s), rng.randrange(t))],
    "random": lambda rng, s, t: _some(rng, s, t, rng.random()),
    "complete": lambda rng, s, t: _some(rng, s, t, 1.0),
    "into_a_hub": lambda rng, s, t: [(i, 0) for i in range(s)] + [(0, t - 1)] * (t > 1),
    "out_of_a_hub": lambda rng, s, t: [(s - 1, i) for i in range(t)],
    "empty_rows": lambda rng, s, t: [(i, j) for i, j in _some(rng, s, t, 0.8) if j % 3 == 0 and i % 2],
    "cycle": _cycle,
    "loops": lambda rng, s, t: [(i, i) for i in range(min(s, t))] + _some(rng, min(s, t), t, 0.1),
    "components": _components,
    "parallel": _parallel,
}
SIMPLE = [kind for kind in KINDS if kind not in ("parallel", "loops")]  # no pair comes twice


def edges_of(kind: str, sources: int, targets: int, seed: int) -> Tensor:
    """``(2, E)`` edges of one kind in random order."""
    rng = random.Random(seed)
    pairs = KINDS[kind](rng, sources, targets)
    rng.shuffle(pairs)
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T.contiguous()


@dataclass(frozen=True)
class Problem:
    """Arguments of ``edge_attention`` in float64, and what to multiply its results by for a loss."""

    layout: EdgeLayout
    tensors: tuple[Tensor, Tensor, Tensor]  # query, key, value
    factors: tuple[Tensor, Tensor]  # of the mix and of the weights
    bias: Tensor | None = None
    edge_features: Tensor | None = None
    key_mask: Tensor | None = None
    dropout_p: float = 0.0
    dropout_seed: Tensor | None = None
    chunk_size: int | None = None
    strides: str = "contiguous"
    need_weights: bool = True
    told: dict[str, Any] = field(default_factory=dict)  # how to make it again

    def leaves(self, dtype: torch.dtype) -> list[Tensor]:
        """Query, key, value and, where there are, bias and features: fresh, with the problem's strides."""
        given = [*self.tensors, *(t for t in (self.bias, self.edge_features) if t is not None)]
        return [arrange(t.to(dtype), self.strides).requires_grad_() for t in given]

    def plain(self) -> Problem:
        """The same problem without chunks and with contiguous tensors."""
        return replace(self, chunk_size=None, strides="contiguous")


def arrange(tensor: Tensor, strides: str) -> Tensor:
    """A copy of ``tensor`` that lies in memory as told."""
    if strides == "turned" and tensor.dim() > 1:  # channels or heads first
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if strides == "spread":  # every second number of a larger tensor
        wide = tensor.unsqueeze(-1).expand(*tensor.shape, 2).contiguous()
        return wide[..., 0]
    return tensor.clone(memory_format=torch.contiguous_format)


# Primes, so that no two axes are alike.
SIZES = (1, 2, 3, 5, 7, 11)
CHUNKS = (None, 1, 2, 3, 7, 1000)
BIASES = ("none", "edge", "column", "edge_head", "sample", "some_gone")
FEATURES = ("none", "none", "none", "edge", "sample")
MASKS = ("none", "some", "all_of_a_sample")


def problem_of(
    kind: str,
    sources: int,
    targets: int,
    heads: int,
    width: int,
    batch: int,
    bias: str,
    features: str,
    mask: str,
    dropout_p: float,
    chunk_size: int | None,
    strides: str,
    need_weights: bool,
    seed: int,
) -> Problem:
    told = dict(locals())
    edge_index = edges_of(kind, sources, targets, seed)
    edges = edge_index.shape[1]
    gen = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=gen, dtype=torch.float64)

    biases = {
        "none": lambda: None,
        "edge": lambda: draw(edges),
        "column": lambda: draw(edges, 1),
        "edge_head": lambda: draw(edges, heads),
        "sample": lambda: draw(batch, edges, heads),
        "some_gone": lambda: torch.where(draw(edges, heads) > 0.5, -torch.inf, draw(edges, heads)),
    }
    features_of = {
        "none": lambda: None,
        "edge": lambda: draw(edges, heads, width),
        "sample": lambda: draw(batch, edges, heads, width),
    }
    key_mask = None
    if mask != "none":
        key_mask = torch.rand(batch, sources, generator=gen) < 0.4
        if mask == "all_of_a_sample":
            key_mask[:1] = True
    return Problem(
        EdgeLayout(edge_index, sources, targets),
        tuple(draw(batch, n, heads, width) for n in (targets, sources, sources)),
        (draw(batch, targets, heads, width), draw(batch, edges, heads)),
        biases[bias](),
        {"none": None, "edge": draw(edges, heads, width), "sample": draw(batch, edges, heads, width)}[
            features
        ],
        key_mask,
        dropout_p,
        torch.tensor(seed) if dropout_p else None,
        chunk_size,
        strides,
        need_weights,
        told,
    )


def random_problem(seed: int) -> Problem:
    """Problem number ``seed`` of a sweep."""
    rng = random.Random(seed)
    return problem_of(
        kind=rng.choice(list(KINDS)),
        sources=rng.choice(SIZES),
        targets=rng.choice(SIZES),
        heads=rng.choice(SIZES[:5]),
        width=rng.choice((*SIZES, 4, 8, 16)),
        batch=rng.choice((0, 1, 1, 2, 3)),
        bias=rng.choice(BIASES),
        features=rng.choice(FEATURES),
        mask=rng.choice(MASKS),
        dropout_p=rng.choice((0.0, 0.0, 0.3, 1.0)),
        chunk_size=rng.choice(CHUNKS),
        strides=rng.choice(("contiguous", "turned", "spread")),
        need_weights=rng.random() < 0.5,
        seed=seed,
    )


def problems() -> st.SearchStrategy[Problem]:
    """The same problems, which hypothesis makes smaller when one fails."""
    sizes = st.sampled_from(SIZES)
    return st.builds(
        problem_of,
        kind=st.sampled_from(list(KINDS)),
        sources=sizes,
        targets=sizes,
        heads=sizes,
        width=sizes,
        batch=st.integers(0, 3),
        bias=st.sampled_from(BIASES),
        features=st.sampled_from(FEATURES[2:]),
        mask=st.sampled_from(MASKS),
        dropout_p=st.sampled_from((0.0, 0.3, 1.0)),
        chunk_size=st.sampled_from(CHUNKS),
        strides=st.sampled_from(("contiguous", "turned", "spread")),
        need_weights=st.booleans(),
        seed=st.integers(0, 2**31),
    )


@st.composite
def node_graphs(draw: Any, simple: bool = True, max_nodes: int = 11) -> tuple[int, Tensor]:
    """Number of nodes and ``(2, E)`` edges among them; loops of the user's own where the kind has some."""
    nodes = draw(st.integers(1, max_nodes))
    kind = draw(st.sampled_from(SIMPLE if simple else list(KINDS)))
    edges = edges_of(kind, nodes, nodes, draw(st.integers(0, 2**31)))
    return nodes, torch.unique(edges, dim=1) if simple and edges.numel() else edges
