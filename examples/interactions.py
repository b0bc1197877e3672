"""Which two regulators act together? A planted AND, found again as the strongest mixed derivative.

    python examples/interactions.py
    python examples/interactions.py --seed 1 --figures pictures

SIMULATED: 12 regulators and 8 genes wired at random. A phenotype adds up the levels of some regulators
and, only where both are high, a term of two that share a gene. A PriorTransformer learns the phenotype
from the levels; ∂²f/∂a∂b is then zero for what it adds up, and not for what it combines.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from pyg_kpnn import PriorGraph, PriorTransformer
from pyg_kpnn.explain import interactions

REGULATORS = [f"TF{i}" for i in range(1, 13)]
GENES = [f"gene{i}" for i in range(1, 9)]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Recover a planted interaction of two regulators.")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--top", type=int, default=6, help="pairs to print")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--figures", type=Path, help="folder for a picture, where matplotlib is installed")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    graph, planted = simulate_network()
    levels = torch.randn(args.samples + 500, graph.state_dim)
    phenotype = simulate_phenotype(graph, levels, planted)
    train = slice(500, None)
    print(f"Network       {graph}")
    print(f"Planted       {planted[0]} AND {planted[1]}, regulators of one gene")

    model = PriorTransformer(graph, embed_dim=16, num_heads=2, num_layers=1, readout="graph")
    seconds = fit(model, levels[train], phenotype[train], args.epochs)
    with torch.no_grad():
        left = (model(levels[:500]) - phenotype[:500]).var() / phenotype[:500].var()
    print(f"Training      {args.epochs} epochs in {seconds:.0f} s")
    print(f"Held out      {1 - left:.3f} of the variance explained")

    start = time.perf_counter()
    table = interactions(model, levels[:100], top_k=args.top)
    table["planted"] = [set(pair) == set(planted) for pair in zip(table.input_a, table.input_b, strict=True)]
    table["hops"] = table["hops"].astype(int)
    print(
        f"\nStrongest mixed derivatives, mean over 100 held-out samples, {time.perf_counter() - start:.1f} s"
    )
    print(table.drop(columns="output").to_string(index=False, float_format="{:.3f}".format))
    print(
        "\n'hops' is how many layers it takes until a pair can interact: the edges to their nearest common\n"
        "descendant. The table describes what the model combines, and so what it found in these samples."
    )
    if args.figures is not None:
        draw(args.figures, table)


def simulate_network() -> tuple[PriorGraph, tuple[str, str]]:
    """Three regulators a gene, drawn at random, and two of those of one gene."""
    edges = [(REGULATORS[i], gene) for gene in GENES for i in torch.randperm(len(REGULATORS))[:3].tolist()]
    first, second = edges[0][0], edges[1][0]
    return PriorGraph.from_edges(edges, nodes=[*REGULATORS, *GENES]), (first, second)


def simulate_phenotype(graph: PriorGraph, levels: Tensor, planted: tuple[str, str]) -> Tensor:
    """A sum of six regulators, of the soft AND of the planted two, and of noise; of unit variance."""
    order = {name: graph.node_units(name).start for name in REGULATORS}
    effects = torch.randn(6) / 6**0.5
    added = levels[:, [order[name] for name in REGULATORS[:6]]] @ effects
    high = torch.sigmoid(3.0 * levels[:, [order[name] for name in planted]])
    phenotype = added + 3.0 * high.prod(1) + 0.2 * torch.randn(len(levels))
    return (phenotype - phenotype.mean()) / phenotype.std()


def fit(model: PriorTransformer, levels: Tensor, phenotype: Tensor, epochs: int) -> float:
    """Train by Adam on the squared error; returns the seconds it took."""
    start = time.perf_counter()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for batch in torch.randperm(len(levels)).split(128):
            loss = nn.functional.mse_loss(model(levels[batch]), phenotype[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    model.eval()
    return time.perf_counter() - start


def draw(folder: Path, table: pd.DataFrame) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture    matplotlib is not installed")
        return
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    colours = ["tab:orange" if planted else "tab:blue" for planted in table["planted"]]
    axes.barh(table["input_a"] + " × " + table["input_b"], table["value"].abs(), color=colours)
    axes.invert_yaxis()
    axes.set_xlabel("|mean mixed derivative|")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "interactions.png"
    figure.savefig(path, bbox_inches="tight")
    print(f"Picture       {path}")


if __name__ == "__main__":
    main()
