"""Classes of nodes: Cora and CiteSeer in their public split."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from accuracy_jobs import MADE_UP, Best, Folders, Found, Job, Task, from_raw
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, TransformerConv
from torch_geometric.transforms import NormalizeFeatures

from pyg_kpnn import PriorAttentionConv

PLANETOID = ("Cora", "CiteSeer")
HEADS, WIDTH = 8, 8


def _gcn(inputs: int, outputs: int, heads: int, concat: bool, dropout: float) -> nn.Module:
    return GCNConv(inputs, outputs * heads if concat else outputs)


def _attention(kind: Callable[..., nn.Module], **options: Any) -> Callable[..., nn.Module]:
    def make(inputs: int, outputs: int, heads: int, concat: bool, dropout: float) -> nn.Module:
        return kind(inputs, outputs, heads=heads, concat=concat, dropout=dropout, **options)

    return make


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "GCN": _gcn,
    "GAT": _attention(GATConv),
    "GATv2": _attention(GATv2Conv),
    "TransformerConv": _attention(TransformerConv),
    "ours": _attention(PriorAttentionConv, add_self_loops=True, root_weight=False),
    "ours, defaults": _attention(PriorAttentionConv),
}


class Words:
    """Features (N, F) that are mostly 0, and the products of layers with them.

    A layer that multiplies all of them, and a dropout that draws a number for each, take fifty times as
    long for the same result.
    """

    def __init__(self, features: Tensor) -> None:
        self.shape = features.shape
        rows, self.columns = features.nonzero(as_tuple=True)
        self.values = self.kept = features[rows, self.columns]
        self.row_starts = _starts(rows, self.shape[0])
        self.by_column = torch.argsort(self.columns * self.shape[0] + rows)
        self.rows = rows[self.by_column]
        self.column_starts = _starts(self.columns[self.by_column], self.shape[1])
        with warnings.catch_warnings():  # torch says once that such tensors are beta
            warnings.filterwarnings("ignore", message="Sparse")
            self.times(torch.zeros(self.shape[1], 1), self.kept)

    def drop(self, p: float, training: bool) -> None:
        """Draw which features the products see from now on, as ``F.dropout`` does."""
        self.kept = F.dropout(self.values, p, training)

    def times(self, matrix: Tensor, kept: Tensor) -> Tensor:
        """``features @ matrix``."""
        return torch.sparse_csr_tensor(self.row_starts, self.columns, kept, self.shape) @ matrix

    def transposed_times(self, matrix: Tensor, kept: Tensor) -> Tensor:
        """``features.T @ matrix``."""
        values = kept[self.by_column]
        return torch.sparse_csr_tensor(self.column_starts, self.rows, values, self.shape[::-1]) @ matrix


def _starts(sorted_rows: Tensor, size: int) -> Tensor:
    counts = torch.bincount(sorted_rows, minlength=size)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, words: Words) -> Tensor:
        ctx.words, ctx.kept = words, words.kept
        return words.times(weight.t().contiguous(), words.kept)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.words.transposed_times(grad.contiguous(), ctx.kept).t(), None


class WordLinear(nn.Module):
    """A Linear with the parameters of another, of the features in ``words`` whatever it is called with."""

    def __init__(self, linear: nn.Module, words: Words) -> None:
        super().__init__()
        self.weight, self.bias, self.in_channels = linear.weight, linear.bias, linear.in_channels
        self.words = words

    def forward(self, _: Tensor) -> Tensor:
        out = _Product.apply(self.weight, self.words)
        return out if self.bias is None else out + self.bias


def on_words(conv: nn.Module, words: Words) -> nn.Module:
    """``conv`` with its projections of the features replaced."""
    for name, child in list(conv.named_children()):
        if getattr(child, "in_channels", None) == words.shape[1]:
            setattr(conv, name, WordLinear(child, words))
    return conv


class TwoLayers(nn.Module):
    """Dropout, a layer of 8 heads, ELU, dropout, a layer of one head."""

    def __init__(self, model: str, words: Words, classes: int, dropout: float) -> None:
        super().__init__()
        self.words, self.dropout = words, dropout
        make = LAYERS[model]
        self.first = on_words(make(words.shape[1], WIDTH, HEADS, True, dropout), words)
        self.second = make(WIDTH * HEADS, classes, 1, False, dropout)
        self.empty = torch.zeros(1, 1).expand(words.shape)  # takes the place of the features

    def forward(self, edge_index: Tensor) -> Tensor:
        self.words.drop(self.dropout, self.training)
        tokens = F.elu(self.first(self.empty, edge_index))
        return self.second(F.dropout(tokens, self.dropout, self.training), edge_index)


@lru_cache(maxsize=2)
def load(dataset: str, folders: Folders) -> tuple[Data, Words, int]:
    """Graph, features with rows that sum to 1, and the number of classes."""
    if dataset == MADE_UP:
        data, classes = made_up(), 3
    else:
        planetoid = Planetoid(str(folders.work / "Planetoid"), dataset, transform=NormalizeFeatures())
        data, classes = planetoid[0], planetoid.num_classes
    return data, Words(data.x), classes


def made_up(nodes: int = 120) -> Data:
    """Three groups whose nodes mostly point to their like, with words that are a weak sign of the group."""
    random = torch.Generator().manual_seed(0)
    y = torch.arange(nodes) % 3
    alike = y.view(-1, 1) == y
    edges = torch.rand(nodes, nodes, generator=random) < torch.where(alike, 0.12, 0.01)
    edges = (edges | edges.t()).fill_diagonal_(False)
    likely = F.one_hot(y, 3).repeat_interleave(10, dim=1) * 0.15 + 0.1
    x = (torch.rand(nodes, 30, generator=random) < likely).float()
    place = torch.arange(nodes)
    masks = {"train_mask": place < 30, "val_mask": (place >= 30) & (place < 60), "test_mask": place >= 60}
    return NormalizeFeatures()(Data(x=x, y=y, edge_index=edges.nonzero().t().contiguous(), **masks))


def run(job: Job, folders: Folders) -> Found:
    """Train with Adam; the epoch with the best validation accuracy, then loss, counts."""
    data, words, classes = load(job.dataset, folders)
    config = job.config
    model = TwoLayers(job.model, words, classes, config["dropout"])
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    best, test = Best(), 0.0
    for _ in range(config["epochs"]):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(data.edge_index)[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            logits = model(data.edge_index)
            right = (logits.argmax(-1) == data.y).float()
            loss = F.cross_entropy(logits[data.val_mask], data.y[data.val_mask])
        if best.improved(float(right[data.val_mask].mean()), float(loss)):
            test = float(right[data.test_mask].mean())
    return Found(best.score, {"accuracy": test}, sum(each.numel() for each in model.parameters()))


def grid(model: str, quick: bool) -> list[dict[str, Any]]:
    rates, decays = ((0.005, 0.01), (5e-4, 1e-3)) if not quick else ((0.005, 0.01), (5e-4,))
    return [
        dict(lr=lr, weight_decay=decay, dropout=0.6, epochs=30 if quick else 200)
        for lr, decay in product(rates, decays)
    ]


TASK = Task(
    title="Classes of nodes: test accuracy, %",
    datasets=PLANETOID,
    models=tuple(LAYERS),
    grid=grid,
    prepare=from_raw("Planetoid", load),
    run=run,
    headline="accuracy",
)
