"""PriorAttentionConv between PyG layers, in PyG's own Sequential, on a PyG dataset.

    python examples/stack_in_pyg.py                          # Zachary's karate club, no download
    python examples/stack_in_pyg.py --figures pictures       # training, and attention around a node
    python examples/stack_in_pyg.py --root DIR --name Cora   # DIR/Cora/raw/ind.cora.* must be there

``--root`` needs scipy, with which PyG reads those files.

PriorAttentionConv takes ``(x, edge_index)`` and gives ``(N, heads * out_channels)``, so it stands
wherever a PyG layer of that shape does. Here it mixes what two GCNConv layers smooth.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor
from torch.nn import Dropout, ReLU
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub, Planetoid
from torch_geometric.nn import GCNConv, Sequential
from torch_geometric.transforms import NormalizeFeatures

from pyg_kpnn import PriorAttentionConv


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Stack PriorAttentionConv between PyG layers.")
    parser.add_argument("--root", help="folder of a Planetoid dataset whose raw files are there")
    parser.add_argument("--name", default="Cora", help="Cora, CiteSeer or PubMed, with --root")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figures", type=Path, help="folder for pictures, where matplotlib is installed")
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)

    if args.root is None:
        dataset = KarateClub()
    else:
        dataset = Planetoid(args.root, args.name, transform=NormalizeFeatures())
    data = dataset[0]
    model = build_model(dataset.num_features, dataset.num_classes)
    print(f"{type(dataset).__name__}: {data}\n{model}")

    test = data.test_mask if "test_mask" in data else ~data.train_mask
    before = accuracy(model, data, test)
    losses = fit(model, data, args.epochs)
    print(f"Accuracy on {int(test.sum())} nodes without a training label: {before:.3f} untrained, "
          f"{accuracy(model, data, test):.3f} after {args.epochs} epochs")  # fmt: skip
    edge_index, weight = attention(model, data)
    print_strongest_neighbour(edge_index, weight)
    if args.figures is not None:
        draw(args.figures, edge_index, weight, losses)


def build_model(in_channels: int, num_classes: int) -> Sequential:
    return Sequential(
        "x, edge_index",
        [
            (Dropout(0.5), "x -> x"),
            (GCNConv(in_channels, 32), "x, edge_index -> x"),
            ReLU(),
            # 4 heads of 8 channels: 32 in, 32 out
            (PriorAttentionConv(32, 8, heads=4, dropout=0.3), "x, edge_index -> x"),
            ReLU(),
            (Dropout(0.5), "x -> x"),
            (GCNConv(32, num_classes), "x, edge_index -> x"),
        ],
    )


def fit(model: Sequential, data: Data, epochs: int) -> list[float]:
    """Train by Adam; returns the loss of every epoch."""
    losses = []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    model.train()
    for _ in range(epochs):
        logits = model(data.x, data.edge_index)
        loss = torch.nn.functional.cross_entropy(logits[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(model: Sequential, data: Data, nodes: Tensor) -> float:
    predicted = model.eval()(data.x, data.edge_index).argmax(1)
    return float((predicted == data.y)[nodes].float().mean())


@torch.no_grad()
def attention(model: Sequential, data: Data) -> tuple[Tensor, Tensor]:
    """Edges and their weights, the mean over heads, in the order PyG's own attention layers give them."""
    conv = next(layer for layer in model if isinstance(layer, PriorAttentionConv))
    kept: list[tuple[Tensor, Tensor]] = []
    hook = conv.register_forward_pre_hook(lambda _, inputs: kept.append(inputs))
    model.eval()(data.x, data.edge_index)
    hook.remove()
    _, (edge_index, alpha) = conv(*kept[0], return_attention_weights=True)
    return edge_index, alpha.mean(-1)


def print_strongest_neighbour(edge_index: Tensor, weights: Tensor, node: int = 0) -> None:
    into = (edge_index[1] == node).nonzero().flatten()
    weight = weights[into]
    best = int(weight.argmax())
    print(f"Node {node} attends most to node {int(edge_index[0, into[best]])} of {len(into)}: weight "
          f"{weight[best]:.3f}, where equal weights would be {1 / len(into):.3f}")  # fmt: skip


def draw(folder: Path, edge_index: Tensor, weight: Tensor, losses: list[float], node: int = 0) -> None:
    from pyg_kpnn.explain.figures import plot_subgraph, plot_training

    source, target = edge_index.tolist()
    table = pd.DataFrame({"source": source, "target": target, "weight": weight.tolist()})
    into = table[table["target"] == node]
    try:
        pictures = {
            "attention.png": plot_subgraph(into, title=f"What node {node} attends to"),
            "training.png": plot_training({"train_loss": losses}, log=True),
        }
    except ImportError:
        print("No pictures: matplotlib is not installed")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, axes in pictures.items():
        axes.figure.savefig(folder / name, dpi=150)
        print(f"Picture: {folder / name}")


if __name__ == "__main__":
    main()
