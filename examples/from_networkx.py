"""A signed graph drawn by hand in networkx, an encoder of one's own, and weights back on its edges.

    python examples/from_networkx.py
    python examples/from_networkx.py --figures pictures

The network is a textbook sketch of the DNA damage response. The samples are random numbers, and
what the model has to learn is made up: whether TP53 is high while MDM2 is low.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import networkx as nx
import pandas as pd
import torch
from torch import Tensor, nn

from pyg_kpnn import PackedMultiheadAttention, PriorGraph

ACTIVATES = [("ATM", "TP53"), ("TP53", "MDM2"), ("TP53", "CDKN1A"), ("E2F1", "CCNE1"), ("CCNE1", "CDK2")]
REPRESSES = [("ATM", "MDM2"), ("MDM2", "TP53"), ("CDKN1A", "CDK2"), ("CDK2", "RB1"), ("RB1", "E2F1")]


class Encoder(nn.Module):
    """Tokens from measured values, one layer of attention along the graph, one logit a sample."""

    def __init__(self, graph: PriorGraph, width: int = 16, num_heads: int = 2) -> None:
        super().__init__()
        self.name = nn.Parameter(torch.randn(graph.state_dim, width))
        self.value = nn.Parameter(torch.randn(graph.state_dim, width))
        self.norm = nn.LayerNorm(width)
        self.attention = PackedMultiheadAttention.from_adjacency(
            graph, width, num_heads, add_self_loops=True, identity=graph.fingerprint
        )
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, n) values in the order of ``graph.nodes`` -> (B,) logits, (B, nnz) edge weights."""
        tokens = self.norm(self.name + x.unsqueeze(-1) * self.value)
        mixed, weights = self.attention(tokens, tokens, tokens, need_weights=True)
        return self.head(tokens + mixed).mean(1).squeeze(-1), weights


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="PackedMultiheadAttention on a networkx graph.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figures", type=Path, help="folder for a picture, where matplotlib is installed")
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)

    drawing = nx.DiGraph()
    drawing.add_edges_from(ACTIVATES, sign="+")
    drawing.add_edges_from(REPRESSES, sign="-")
    graph = PriorGraph.from_networkx(drawing, sign="sign")
    print(graph)
    print("Order of the columns:", ", ".join(graph.nodes))

    model = Encoder(graph)
    fit(model, graph, args.steps)
    x, y = sample(graph, 1000)
    with torch.no_grad():
        logits, weights = model.eval()(x)
    print(f"Accuracy on 1000 new random samples: {((logits > 0) == y).float().mean():.3f}")

    # graph.edges names the first weights; those of the added self-loops come after them.
    named = dict(zip(graph.edges, weights.mean(0).tolist(), strict=False))
    nx.set_edge_attributes(drawing, named, "attention")
    for source, target, edge in sorted(drawing.edges(data=True), key=lambda item: -item[2]["attention"]):
        print(f"  {source:>6} {edge['sign']} {target:<6} {edge['attention']:.3f}")
    print("Weights into a node, its own loop included, sum to 1. They say nothing about causes.")
    if args.figures is not None:
        draw(args.figures, graph, named)


def sample(graph: PriorGraph, count: int) -> tuple[Tensor, Tensor]:
    """Random measurements and the made-up label."""
    x = torch.randn(count, graph.state_dim)
    high, low = graph.node_units("TP53").start, graph.node_units("MDM2").start
    return x, (x[:, high] > 0) & (x[:, low] < 0)


def fit(model: Encoder, graph: PriorGraph, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        x, y = sample(graph, 128)
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[0], y.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def draw(folder: Path, graph: PriorGraph, named: dict[tuple[str, str], float]) -> None:
    from pyg_kpnn.explain.figures import plot_subgraph

    table = pd.DataFrame(list(named), columns=["source", "target"]).assign(weight=list(named.values()))
    try:
        axes = plot_subgraph(table, graph=graph, top_k=None, title="Attention in the DNA damage response")
    except ImportError:
        print("No picture: matplotlib is not installed")
        return
    folder.mkdir(parents=True, exist_ok=True)
    axes.figure.savefig(folder / "attention.png", dpi=150)
    print(f"Picture: {folder / 'attention.png'}")


if __name__ == "__main__":
    main()
