"""States of samples, and values that are hidden: the same loop for every model."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from accuracy_genes import HIDDEN_TEST, load, prepare, split, standardised
from accuracy_jobs import Best, Folders, Found, Job, Task
from accuracy_models import OF_CLASSES, OF_VALUES, size
from torch import Tensor, nn

from pyg_kpnn.train.scores import classification_scores, confusion, moments, regression_scores

HIDDEN_SHARE = 0.2  # of the genes of a sample


class Part(NamedTuple):
    """Samples to be scored: values, classes, and in the masked task which values are hidden."""

    x: Tensor
    labels: Tensor
    hidden: Tensor | None


def hide(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Which values are hidden: of each sample the same number, at least one and not all."""
    count = min(max(1, round(HIDDEN_SHARE * x.shape[1])), x.shape[1] - 1)
    order = torch.rand(x.shape, generator=generator).argsort(1)
    return order < count


def scores(model: nn.Module, part: Part, classes: int) -> tuple[dict[str, float], float]:
    """Scores of a part, and the loss that breaks ties."""
    model.eval()
    with torch.no_grad():
        pieces = torch.arange(len(part.x)).split(256)
        outs = [model(part.x[at], *([] if part.hidden is None else [part.hidden[at]])) for at in pieces]
    out = torch.cat(outs)
    if part.hidden is None:
        found = classification_scores(confusion(out, part.labels))
        names = {"balanced accuracy": "balanced_accuracy", "accuracy": "accuracy"}
        return {new: float(found[old]) for new, old in names.items()}, float(
            F.cross_entropy(out, part.labels)
        )
    r2 = float(regression_scores(moments(out, part.x, part.hidden))["r2"])
    error = float(F.mse_loss(out[part.hidden], part.x[part.hidden]))
    return {"R²": r2, "squared error": error}, error


def run(job: Job, folders: Folders) -> Found:
    """Train with AdamW; the epoch with the best score on the validation part, then loss, counts."""
    genes, config = load(job.dataset, folders), job.config
    masked = job.task == "masked"
    parts = split(genes, job.seed)
    x = standardised(genes.x, parts.train)
    parts_hidden = [
        hide(x[places], torch.Generator().manual_seed(HIDDEN_TEST)) if masked else None for places in parts
    ]
    _, validation, test = (
        Part(x[places], genes.labels[places], hidden)
        for places, hidden in zip(parts, parts_hidden, strict=True)
    )
    build = (OF_VALUES if masked else OF_CLASSES)[job.model]
    model = build(genes.graph, None if masked else genes.classes, config["dropout"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    headline = MASKED.headline if masked else STATES.headline
    best, found = Best(), {}
    of_an_epoch = math.ceil(len(parts.train) / config["batch"])
    for _ in range(max(config["epochs"], math.ceil(config["updates"] / of_an_epoch))):
        model.train()
        for places in parts.train[torch.randperm(len(parts.train))].split(config["batch"]):
            optimizer.zero_grad()
            if masked:
                hidden = hide(x[places])
                loss = F.mse_loss(model(x[places], hidden)[hidden], x[places][hidden])
            else:
                loss = F.cross_entropy(model(x[places]), genes.labels[places])
            loss.backward()
            optimizer.step()
        score, lost = scores(model, validation, genes.classes)
        if best.improved(score[headline], lost):
            found = scores(model, test, genes.classes)[0]
    return Found(best.score, found, size(model))


def grid(model: str, quick: bool) -> list[dict[str, Any]]:
    budget = {"epochs": 5, "updates": 0} if quick else {"epochs": 30, "updates": 300}  # at least
    return [dict(lr=0.01, weight_decay=0.01, dropout=0.1, batch=64, **budget)]


STATES = Task(
    title="States of samples: test balanced accuracy, %",
    datasets=("HSC", "THP1", "pbmc68k"),
    models=tuple(OF_CLASSES),
    grid=grid,
    prepare=prepare,
    run=run,
    headline="balanced accuracy",
    seeds_of={"THP1": 30},
)
MASKED = Task(
    title="Hidden values: test R² of a fifth of the genes",
    datasets=("HSC", "SERGIO", "DREAM4 100"),
    models=tuple(OF_VALUES),
    grid=grid,
    prepare=prepare,
    run=run,
    headline="R²",
    percent=False,
)
