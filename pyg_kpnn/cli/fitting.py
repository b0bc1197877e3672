"""``pyg-kpnn fit``: train, score held-out samples, write a folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import __version__
from ..datasets import AlignedDataset
from ..errors import PriorGraphError
from ..nn import PriorTransformer
from ..prior import ReadReport
from .answers import save_figure
from .files import write_json

__all__ = ["Settings", "fit_folder"]


class Settings(NamedTuple):
    """What the options of the command say."""

    epochs: int
    patience: int
    embed_dim: int
    num_heads: int
    num_layers: int
    shared_head: bool
    dropout: float
    lr: float
    batch_size: int
    seed: int
    quiet: bool
    undirected: bool = False  # what the graph of the samples is already


def fit_folder(
    samples: AlignedDataset, report: ReadReport, settings: Settings, folder: Path
) -> dict[str, Any]:
    """Train on a part of the samples, write ``model.ckpt`` and what became of it, and return the summary."""
    import pandas as pd

    from ..explain import plot_training
    from ..train import PriorDataModule, PriorTransformerModule, fit

    classes = samples.num_classes  # none without a label
    if classes == 1:
        raise PriorGraphError("--label must have at least two classes. Got 1.")
    graph = samples.graph
    torch.manual_seed(settings.seed)
    model = PriorTransformer(
        graph,
        embed_dim=settings.embed_dim,
        num_heads=settings.num_heads,
        num_layers=settings.num_layers,
        dropout=settings.dropout,
        edge_bias=None if graph.sign is None else "sign",
        readout="class" if classes else "node",
        num_classes=classes or None,
        shared_head=settings.shared_head,
    )
    data = PriorDataModule(samples, batch_size=settings.batch_size, seed=settings.seed)
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.WARNING)  # a bar, and no advertisements
    try:
        module = fit(
            PriorTransformerModule(model, lr=settings.lr),
            data,
            max_epochs=settings.epochs,
            patience=settings.patience,
            quiet=settings.quiet,
            save_to=folder / "model.ckpt",
            accelerator="cpu" if not torch.cuda.is_available() else "auto",
            devices=1,
        ).cpu()
    finally:
        log.setLevel(level)
    history = pd.DataFrame(module.history)
    history.to_csv(folder / "history.csv", index=False)
    parts = {"train": data.train_index, "validation": data.val_index, "test": data.test_index}
    rows = [(samples.sample_names[int(i)], part) for part, places in parts.items() for i in places]
    pd.DataFrame(rows, columns=["sample", "part"]).to_csv(folder / "split.csv", index=False)
    save_figure(lambda: plot_training(history), folder / "training.png")
    run = {
        "pyg_kpnn": __version__,
        "settings": settings._asdict(),
        "prior": report.to_dict(),
        "match": samples.report.to_dict(),
        "graph": {"nodes": graph.num_nodes, "edges": graph.num_edges, "fingerprint": graph.fingerprint},
        "classes": samples.class_counts() or None,
        "samples": {part: len(places) for part, places in parts.items()},
        "epochs": len(history),
        "test": _scores(module, samples, data.test_index) if len(data.test_index) else {},
    }
    write_json(run, folder / "run.json")
    return run


def _scores(module: Any, samples: AlignedDataset, places: Tensor) -> dict[str, float]:
    from ..train.scores import classification_scores, confusion, moments, regression_scores

    part = samples[places]
    sums: Tensor | None = None
    for start in range(0, len(part), 256):
        x, y, mask = part[start : start + 256].tensors()
        if y is not None:
            new = confusion(module.predict(x, mask), y)
        else:
            hidden = ~mask & module.hidden(x, start, "test")
            new = moments(module.predict(x, mask | hidden), module.standardised(x), hidden)
        sums = new if sums is None else sums + new
    assert sums is not None
    scores = classification_scores(sums) if samples.num_classes else regression_scores(sums)
    if samples.num_classes:
        scores = {**scores, "commonest_class": sums.sum(1).max() / sums.sum()}
    return {name: float(value) for name, value in scores.items()}
