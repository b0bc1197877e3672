"""Who regulates whom: edges ranked by a model that was given every pair of genes, never the true edges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accuracy_genes import load, prepare, standardised
from accuracy_jobs import Folders, Found, Job, Task
from torch import Tensor, nn

from pyg_kpnn import PackedMultiheadAttention, PriorGraph
from pyg_kpnn.explain import edge_weights, knockout

READOUTS = ("derivatives", "attention", "knock-outs")
ASKED = 200  # samples at most that a trained model is asked about


def complete(nodes: Iterable[str]) -> PriorGraph:
    """Every ordered pair of different genes."""
    names = list(nodes)
    return PriorGraph.from_edges([(a, b) for a in names for b in names if a != b])


class EachFromOthers(nn.Module):
    """Every gene out of the values of all others at once, by attention on the complete graph.

    A gene asks with its name and reads the others' names and values, so that its own value cannot reach
    its prediction, and all genes are hidden from themselves in one pass.
    """

    def __init__(self, graph: PriorGraph, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        n = graph.state_dim
        self.graph = graph
        self.query_name = nn.Parameter(torch.randn(n, width))
        self.name = nn.Parameter(torch.randn(n, width) * 0.5**0.5)
        self.direction = nn.Parameter(torch.randn(n, width) * 0.5**0.5)
        self.attention = PackedMultiheadAttention.from_adjacency(graph, width, heads)
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(dropout)
        self.readout = nn.Parameter(torch.zeros(n, width))  # a model that has learnt nothing says the mean
        self.bias = nn.Parameter(torch.zeros(n))

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        tokens = self.name + x.unsqueeze(-1) * self.direction
        query = self.query_name.expand_as(tokens)
        mixed = self.dropout(self.attention(query, tokens, tokens, hidden, need_weights=False)[0])
        state = mixed + self.inner(self.norm(mixed + self.query_name))
        return (state * self.readout).sum(-1) + self.bias


def counted(perturbed: Tensor, genes: int) -> Tensor:
    """(N, n) bool: a gene that was itself knocked out or down says nothing about its regulators."""
    return torch.arange(genes) != perturbed.unsqueeze(-1)


def train(graph: PriorGraph, x: Tensor, counts: Tensor, config: dict[str, Any]) -> EachFromOthers:
    """Predict every gene while a share of the others, drawn anew each time, is not to be seen.

    Without that a gene is told by the few others that say most of it, and the rest of the ranking is
    noise. Trained to the end: on few samples the epoch that predicts others best is one of the first,
    which has learnt next to nothing.
    """
    model = EachFromOthers(graph, config["width"], config["heads"], config["dropout"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config["lr"], total_steps=config["steps"])
    model.train()
    for _ in range(config["steps"]):
        places = torch.randint(len(x), (config["batch"],))
        optimizer.zero_grad()
        hidden = torch.rand(len(places), x.shape[1]) < config["hidden"]
        error = F.mse_loss(model(x[places], hidden), x[places], reduction="none")
        error[counts[places]].mean().backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def derivatives(model: nn.Module, x: Tensor) -> np.ndarray:
    """(targets, sources): the mean size of d prediction of target / d value of source over samples."""
    x = x.clone().requires_grad_()
    out = model(x)
    rows = [torch.autograd.grad(out[:, gene].sum(), x, retain_graph=True)[0] for gene in range(out.shape[1])]
    return torch.stack([row.abs().mean(0) for row in rows]).numpy()


def attention(model: Any, x: Tensor) -> np.ndarray:
    """(targets, sources): the mean weight over samples and heads."""
    table = edge_weights(model, x, heads="mean")
    return _matrix(model.graph, table["source"], table["target"], table["weight"])


def knockouts(model: Any, x: Tensor) -> np.ndarray:
    """(targets, sources): the mean size of the change when a source takes its average value."""
    table = knockout(model, x, value=0.0, per_sample=True)
    sizes = (
        table.assign(change=table["change"].abs()).groupby(["node", "output"], observed=True)["change"].mean()
    )
    table = sizes.reset_index()
    return _matrix(model.graph, table["node"], table["output"], table["change"])


def _matrix(graph: PriorGraph, sources: Any, targets: Any, values: Any) -> np.ndarray:
    at = {name: place for place, name in enumerate(graph.nodes)}
    found = np.zeros((len(at), len(at)))
    found[[at[name] for name in targets], [at[name] for name in sources]] = np.asarray(values)
    return found


def forests(x: Tensor, counts: Tensor, seed: int, config: dict[str, Any]) -> np.ndarray:
    """(targets, sources): importances of a forest a target, which is what GENIE3 does."""
    from sklearn.ensemble import RandomForestRegressor

    values, n = x.numpy(), x.shape[1]
    found = np.zeros((n, n))
    for target in range(n):
        others = np.delete(np.arange(n), target)
        rows = counts[:, target].numpy()
        forest = RandomForestRegressor(config["trees"], max_features="sqrt", random_state=seed)
        forest.fit(values[np.ix_(rows, others)], values[rows, target])
        found[target, others] = forest.feature_importances_
    return found


def compared(scores: np.ndarray) -> np.ndarray:
    """Scores that can be compared across targets: each target's are divided by their sum."""
    scores = scores.copy()
    np.fill_diagonal(scores, 0.0)
    return scores / np.maximum(scores.sum(1, keepdims=True), 1e-12)


def rated(scores: np.ndarray, graph: PriorGraph) -> dict[str, float]:
    """Area under precision and recall, that over a random ranking's, and early precision over it.

    All ordered pairs of different genes are ranked. A random ranking has, on average, the share of pairs
    that are edges. Early precision is the share of edges among as many pairs as there are edges.
    """
    from sklearn.metrics import average_precision_score

    n = graph.state_dim
    true = np.zeros((n, n), dtype=bool)
    true[graph.target_index, graph.source_index] = True
    pairs = ~np.eye(n, dtype=bool)
    truth, ranked = true[pairs], scores[pairs]
    density = truth.mean()
    area = float(average_precision_score(truth, ranked))
    first = np.argsort(-ranked, kind="stable")[: truth.sum()]
    return {
        "AUPRC": area,
        "AUPRC ÷ random": float(area / density),
        "early precision ÷ random": float(truth[first].mean() / density),
    }


def run(job: Job, folders: Folders) -> Found:
    """Train on every steady state, rank every pair, then look at the true edges for the first time."""
    genes, config = load(job.dataset, folders), job.config
    steady = ~genes.in_series
    x = standardised(genes.x[steady], torch.arange(int(steady.sum())))
    counts = counted(genes.perturbed[steady], x.shape[1])
    parameters = 0
    if job.model == "ours":
        model = train(complete(genes.graph.nodes), x, counts, config)
        parameters = sum(each.numel() for each in model.parameters())
        asked = x[torch.randperm(len(x))[:ASKED]]
        matrices = {
            "derivatives": derivatives(model, asked),
            "attention": attention(model, asked),
            "knock-outs": knockouts(model, asked),
        }
    elif job.model == "GENIE3-style":
        matrices = {"": forests(x, counts, job.seed, config)}
    else:
        matrices = {"": np.random.default_rng(job.seed).random((x.shape[1], x.shape[1]))}
    test = {
        f"{readout}/{name}": value
        for readout, scores in matrices.items()
        for name, value in rated(compared(scores), genes.graph).items()
    }
    return Found(0.0, test, parameters)


def grid(model: str, quick: bool) -> list[dict[str, Any]]:
    if model == "GENIE3-style":
        return [dict(trees=20 if quick else 500)]
    if model != "ours":
        return [{}]
    sizes = dict(width=32, heads=4, dropout=0.1, hidden=0.5, lr=0.01, weight_decay=0.01, batch=32)
    return [dict(**sizes, steps=40 if quick else 600)]


TASK = Task(
    title="Edges found among all ordered pairs of genes",
    datasets=("GSD", "HSC", "mCAD", "DREAM4 10", "DREAM4 100"),
    models=("ours", "GENIE3-style", "random"),
    grid=grid,
    prepare=prepare,
    run=run,
    headline="AUPRC",
    reference="ours, derivatives",
    percent=False,
)
