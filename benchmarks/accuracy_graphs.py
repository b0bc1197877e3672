"""Classes of graphs: MUTAG in ten folds, the same stack around every layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accuracy_jobs import MADE_UP, Best, Folders, Found, Job, Task, from_raw
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import TUDataset
from torch_geometric.nn import GATv2Conv, GINConv, TransformerConv, global_add_pool, global_mean_pool

from pyg_kpnn import PriorAttentionConv

WIDTH, HEADS, DEPTH, FOLDS = 32, 4, 3, 10


def _gin() -> nn.Module:
    return GINConv(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)))


def _heads(kind: Callable[..., nn.Module], **options: Any) -> Callable[[], nn.Module]:
    return lambda: kind(WIDTH, WIDTH // HEADS, heads=HEADS, **options)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GIN": _gin,
    "GATv2": _heads(GATv2Conv),
    "TransformerConv": _heads(TransformerConv),
    "ours": _heads(PriorAttentionConv),
    "ours, loops": _heads(PriorAttentionConv, add_self_loops=True, root_weight=False),
}


class Stack(nn.Module):
    """Three times layer, batch norm, ReLU, dropout and residual; mean and sum over nodes; two layers."""

    def __init__(self, model: str, inputs: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.embedding = nn.Linear(inputs, WIDTH)
        self.layers = nn.ModuleList(LAYERS[model]() for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(DEPTH))
        self.head = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes))

    def forward(self, batch: Data) -> Tensor:
        tokens = self.embedding(batch.x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            new = F.relu(norm(layer(tokens, batch.edge_index)))
            tokens = tokens + F.dropout(new, self.dropout, self.training)
        pooled = [pool(tokens, batch.batch, batch.num_graphs) for pool in (global_mean_pool, global_add_pool)]
        return self.head(torch.cat(pooled, dim=-1))


@lru_cache(maxsize=1)
def load(dataset: str, folders: Folders) -> list[Data]:
    if dataset == MADE_UP:
        return made_up()
    return [*TUDataset(str(folders.work / "TUDataset"), dataset)]


def made_up(count: int = 40) -> list[Data]:
    """Rings of four to nine nodes, every second one with a chord from each node to the next but one."""
    random = torch.Generator().manual_seed(0)
    graphs = []
    for place in range(count):
        size = 4 + place % 6
        node = torch.arange(size)
        steps = [1, 2] if place % 2 else [1]
        pairs = torch.cat([torch.stack([node, (node + step) % size]) for step in steps], dim=1)
        x = F.one_hot(torch.randint(3, (size,), generator=random), 3).float()
        y = torch.tensor([place % 2])
        graphs.append(Data(x=x, edge_index=torch.cat([pairs, pairs.flip(0)], dim=1), y=y))
    return graphs


def folds(labels: np.ndarray, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Places of training, validation and test: fold ``seed`` is the test, the next one the validation.

    Each class is dealt to the folds in turn. Seeds 0 to 9 are one deal, 10 to 19 another.
    """
    random = np.random.default_rng(seed // FOLDS)
    fold = np.empty(len(labels), dtype=np.int64)
    dealt = 0
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        fold[members] = (dealt + np.arange(len(members))) % FOLDS
        dealt += len(members)
    test, validation = seed % FOLDS, (seed + 1) % FOLDS
    parts = [fold != test, fold == validation, fold == test]
    parts[0] &= fold != validation
    first, second, third = ([int(place) for place in np.flatnonzero(part)] for part in parts)
    return first, second, third


def run(job: Job, folders: Folders) -> Found:
    """Train with Adam; the epoch with the best validation accuracy, then loss, counts."""
    graphs, config = load(job.dataset, folders), job.config
    labels = np.array([int(graph.y) for graph in graphs])
    train, *others = folds(labels, job.seed)
    validation, test = (Batch.from_data_list([graphs[place] for place in part]) for part in others)
    model = Stack(job.model, graphs[0].num_features, int(labels.max()) + 1, config["dropout"])
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    best, score = Best(), 0.0
    for _ in range(config["epochs"]):
        model.train()
        for part in torch.randperm(len(train)).split(config["batch"]):
            batch = Batch.from_data_list([graphs[train[place]] for place in part.tolist()])
            optimizer.zero_grad()
            F.cross_entropy(model(batch), batch.y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            logits = model(validation)
            loss = float(F.cross_entropy(logits, validation.y))
            if best.improved(accuracy(logits, validation.y), loss):
                score = accuracy(model(test), test.y)
    return Found(best.score, {"accuracy": score}, sum(each.numel() for each in model.parameters()))


def accuracy(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(-1) == labels).double().mean())


def grid(model: str, quick: bool) -> list[dict[str, Any]]:
    return [dict(lr=0.003, weight_decay=1e-4, dropout=0.2, batch=32, epochs=20 if quick else 100)]


TASK = Task(
    title="Classes of graphs: test accuracy of ten folds, %",
    datasets=("MUTAG",),
    models=tuple(LAYERS),
    grid=grid,
    prepare=from_raw("TUDataset", load),
    run=run,
    headline="accuracy",
    seeds=3 * FOLDS,  # three deals
)
