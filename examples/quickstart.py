"""From a prior in a file and a table of measurements to a trained, named, checkpointed model.

    python examples/quickstart.py
    python examples/quickstart.py --prior net.csv --source tf --target gene --sign mode \
        --measurements cells.csv --label cell_type --out results --figures pictures

Without files of your own, the prior is the myeloid network in ``datasets/hsc/edges.csv`` and the
cells are SIMULATED from it, written to a CSV with shuffled columns, and read back like any other.
Accuracies vary by some hundredths with the cells and the split: run it with ``--seed 1``, ``--seed 2``, …
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from pyg_kpnn import (
    PriorGraph,
    PriorGraphError,
    PriorTransformer,
    align_inputs,
    load_checkpoint,
    read_edgelist,
)
from pyg_kpnn.datasets import CuratedGRN

SHIPPED_PRIOR = Path(__file__).parents[1] / "datasets" / "hsc" / "edges.csv"


class Cells(NamedTuple):
    """Measurements in the order of ``graph.nodes``, NaN where not measured, and their classes."""

    values: Tensor  # (cells, nodes) float32
    labels: Tensor  # (cells,) int64
    class_names: list[str]


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        out = args.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        run(args, out)


def run(args: argparse.Namespace, out: Path) -> None:
    graph = read_prior(args)
    print(f"Prior         {args.prior.name}: {graph}")
    if args.measurements is None:
        args.measurements = simulate(out / "cells.csv", args.cells, args.seed)
        print("Measurements  cells.csv: SIMULATED cells, columns shuffled; real tables: --measurements")
    cells = read_measurements(args.measurements, args.label, graph)
    train, held_out = stratified_split(cells.labels, args.seed)
    values = standardise(cells.values, train)
    print(f"Cells         {len(train)} to train on, {len(held_out)} held out, {values.shape[1]} nodes each")

    config = {
        "embed_dim": 32,
        "num_heads": 4,
        "num_layers": 2,
        "dropout": 0.3,
        "readout": "class",
        "num_classes": len(cells.class_names),
        "edge_bias": None if graph.sign is None else "sign",
    }
    model = PriorTransformer(graph, **config)
    watched = None if args.figures is None else (values[held_out], cells.labels[held_out])
    seconds, history = fit(model, values[train], cells.labels[train], args.epochs, watched)
    logits = predict(model, values[held_out])

    truth = cells.labels[held_out]
    accuracy = (logits.argmax(1) == truth).float().mean()
    majority = truth.bincount().max() / len(truth)
    print(f"Training      {args.epochs} epochs in {seconds:.0f} s")
    linear = logistic_regression(values[train], cells.labels[train])
    baseline = (linear(values[held_out].nan_to_num()).argmax(1) == truth).float().mean()
    print(f"Held out      accuracy {accuracy:.3f}")
    print(
        f"To compare    {baseline:.3f} logistic regression, without a prior; {majority:.3f} commonest class"
    )

    for label in truth.bincount().argsort(descending=True)[:2].tolist():
        members = values[held_out][truth == label]
        print(f"\nStrongest edges in {cells.class_names[label]}, {len(members)} held-out cells")
        print(strongest_edges(model, members).to_string(index=False))
    print(
        "\n'weight' is attention in the last layer, averaged over heads and cells; 'even' is what equal\n"
        "attention to all regulators of the target and itself would be. The weights describe what this\n"
        "model mixes; they are no evidence that a regulator causes anything."
    )

    if args.figures is not None:
        draw(args.figures, model, values[held_out], [cells.class_names[i] for i in truth.tolist()], history)

    path = out / "model.pt"
    saved = {"model": model.state_dict(), "graph": graph.to_dict(), "config": config}
    torch.save(saved, path)
    again = reload(path)
    if not torch.equal(predict(again, values[held_out]), logits):
        raise RuntimeError("The reloaded model must predict what the saved one did.")
    print(f"\nSaved {path if args.out else path.name} and loaded it into a new model: equal predictions.")
    show_refusal(path, graph, config)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a PriorTransformer on a prior graph and a measurement table.",
        epilog="Without --measurements, cells are simulated from the shipped myeloid network.",
    )
    parser.add_argument("--prior", type=Path, help="CSV or TSV, one edge a line")
    parser.add_argument("--source", default="source", help="column of the regulators")
    parser.add_argument("--target", default="target", help="column of the regulated genes")
    parser.add_argument("--sign", help="column of signs, + - or words; '' for none; default: sign, if there")
    parser.add_argument("--measurements", type=Path, help="CSV, samples in rows, one column a gene")
    parser.add_argument("--label", default="fate", help="column of the class to predict")
    parser.add_argument("--cells", type=int, default=2000, help="how many cells to simulate")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="more pay only on larger graphs")
    parser.add_argument("--out", type=Path, help="folder to keep the checkpoint in; default: not kept")
    parser.add_argument("--figures", type=Path, help="folder for pictures, where matplotlib is installed")
    args = parser.parse_args(argv)
    if (args.prior is None) != (args.measurements is None):
        parser.error("--prior and --measurements go together: simulated cells only fit the shipped prior")
    args.prior = args.prior or SHIPPED_PRIOR
    return args


def read_prior(args: argparse.Namespace) -> PriorGraph:
    """The graph of a file, with signs from the named column, or from one called ``sign`` if it has one."""
    sign = args.sign or None
    try:
        if args.sign is None:
            separator = "," if ".csv" in args.prior.suffixes else "\t"
            header = pd.read_csv(args.prior, sep=separator, nrows=0, encoding="utf-8-sig")
            sign = "sign" if "sign" in header.columns.str.strip() else None
        return read_edgelist(args.prior, source=args.source, target=args.target, sign=sign)
    except (PriorGraphError, pd.errors.EmptyDataError) as error:
        sys.exit(f"--prior: {error}")


def simulate(path: Path, num_cells: int, seed: int) -> Path:
    """Write simulated cells as a table whose columns are in no useful order."""
    table = CuratedGRN(name="hsc", num_cells=num_cells, seed=seed).to_frame(label="fate")
    table.sample(frac=1, axis="columns", random_state=seed).to_csv(path)
    return path


def read_measurements(path: Path, label: str, graph: PriorGraph) -> Cells:
    """Read a table and put its columns in the order of the graph, by name."""
    table = pd.read_csv(path)
    if label not in table.columns:
        others = [name for name in table.columns if name not in graph.nodes]
        sys.exit(f"--label: {path.name} must have the column {label!r}. Its columns that are no node of the "
                 f"prior: {', '.join(map(str, others[:20])) or 'none'}")  # fmt: skip
    table = table.dropna(subset=[label])
    classes = pd.Categorical(table[label].astype(str))
    if (classes.value_counts() >= 3).sum() < 2:  # one of three is held out
        sys.exit(f"--label: {label!r} must have two classes or more of at least three samples each. Got "
                 f"{len(classes.categories)} class(es) in {len(table)} labelled samples")  # fmt: skip
    try:
        aligned = align_inputs(table, graph)
    except PriorGraphError as error:
        sys.exit(f"--measurements: {error}")
    for name in aligned.select_dtypes(exclude=["number", "bool"]):
        numbers = pd.to_numeric(aligned[name], errors="coerce")
        text = aligned[name][numbers.isna() & aligned[name].notna()]
        found = repr(text.iloc[0]) if len(text) else "text"
        sys.exit(f"--measurements: column {name!r} must hold numbers or empty cells. Got {found}")
    values = aligned.to_numpy(dtype="float32", copy=True)
    return Cells(torch.from_numpy(values), torch.tensor(classes.codes).long(), list(classes.categories))


def stratified_split(labels: Tensor, seed: int, share: float = 0.25) -> tuple[Tensor, Tensor]:
    """Indices to train on and to hold out, the same share of every class."""
    generator = torch.Generator().manual_seed(seed)
    train, held_out = [], []
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        cut = round(share * len(members))
        held_out.append(members[:cut])
        train.append(members[cut:])
    return torch.cat(train), torch.cat(held_out)


def standardise(values: Tensor, train: Tensor) -> Tensor:
    """Zero mean and unit variance in the training cells; missing values stay NaN."""
    mean = values[train].nanmean(0)
    std = (values[train] - mean).square().nanmean(0).sqrt()
    return (values - mean) / torch.where(std > 0, std, 1.0)


def fit(
    model: PriorTransformer,
    values: Tensor,
    labels: Tensor,
    epochs: int,
    watched: tuple[Tensor, Tensor] | None = None,
) -> tuple[float, dict[str, list[float]]]:
    """Train by AdamW with one warm-up and decay of the learning rate.

    Returns the seconds it took, and the losses of each epoch: in training, and on ``watched`` if given.
    """
    history: dict[str, list[float]] = {"train_loss": []} | ({"val_loss": []} if watched else {})
    start = time.perf_counter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.3)
    steps = epochs * math.ceil(len(labels) / 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    model.train()
    for _ in progress(range(epochs)):
        losses = []
        for batch in torch.randperm(len(labels)).split(128):
            logits = model(*masked(values[batch]))
            loss = nn.functional.cross_entropy(logits, labels[batch], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        history["train_loss"].append(sum(losses) / len(losses))
        if watched is not None:
            logits = predict(model, watched[0])
            history["val_loss"].append(nn.functional.cross_entropy(logits, watched[1]).item())
            model.train()
    model.eval()
    return time.perf_counter() - start, history


def logistic_regression(values: Tensor, labels: Tensor, penalty: float = 1e-3) -> nn.Linear:
    """What a model without a prior makes of the same cells; missing values count as the mean."""
    model = nn.Linear(values.shape[1], int(labels.max()) + 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(values.nan_to_num()), labels)
        loss = loss + penalty * model.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return model.requires_grad_(False)


def progress(steps: range) -> Any:
    """A progress bar where tqdm is installed, else the plain loop."""
    try:
        from tqdm import tqdm
    except ImportError:
        return steps
    return tqdm(steps, desc="Training", unit="epoch")


def masked(values: Tensor) -> tuple[Tensor, Tensor | None]:
    """The two arguments of the model: values, and which of them are missing, if any are."""
    missing = values.isnan()
    return values, (missing if missing.any() else None)


@torch.no_grad()
def predict(model: PriorTransformer, values: Tensor) -> Tensor:
    return model.eval()(*masked(values))


@torch.no_grad()
def strongest_edges(model: PriorTransformer, values: Tensor, top: int = 10) -> pd.DataFrame:
    """The edges of the prior with the largest mean weight in these cells, by name."""
    graph = model.graph
    weights = model.edge_weights(*masked(values))[-1].mean(dim=(0, 2))  # (edges + added self-loops,)
    targets = model.layers[-1].attention.target_index
    table = graph.to_edgelist()  # edges in the order of the weights; added self-loops come after them
    table["weight"] = weights[: graph.num_edges].numpy()
    table["even"] = (1 / targets.bincount()[targets[: graph.num_edges]]).numpy()
    table.insert(1, "", "→")
    if "sign" in table:
        table["sign"] = table["sign"].map({1: "+", -1: "-", 0: "?"})
    return table.nlargest(top, "weight").round(3)


def draw(
    folder: Path, model: PriorTransformer, values: Tensor, classes: list[str], history: dict[str, list[float]]
) -> None:
    """Weights of the last layer as a network, class by class as a heat map and as a page; the losses."""
    from pyg_kpnn.explain import edge_weights
    from pyg_kpnn.explain.figures import plot_edge_heatmap, plot_subgraph, plot_training
    from pyg_kpnn.explain.network_view import write_network_html

    last, missing = {"heads": "mean", "layers": [len(model.layers) - 1]}, masked(values)[1]
    overall = edge_weights(model, values, key_padding_mask=missing, **last)
    apart = edge_weights(model, values, groupby=classes, key_padding_mask=missing, **last)
    overall, apart = (table[table["source"] != table["target"]] for table in (overall, apart))
    try:
        pictures = {
            "network.png": plot_subgraph(overall, graph=model.graph, title="Strongest edges"),
            "classes.png": plot_edge_heatmap(apart, title="Edges that differ most"),
            "training.png": plot_training(history),
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name, axes in pictures.items():
            axes.figure.savefig(folder / name, dpi=150)
        write_network_html(overall, folder / "network.html", graph=model.graph)
    except ImportError as error:
        print(f"\nNo pictures: {error}")
        return
    print(f"\nPictures in {folder}: {', '.join(pictures)} and network.html")


def reload(path: Path) -> PriorTransformer:
    """Rebuild graph and model from nothing but the file."""
    saved = torch.load(path, weights_only=True)
    model = PriorTransformer(PriorGraph.from_dict(saved["graph"]), **saved["config"])
    load_checkpoint(model, saved["model"])
    return model


def show_refusal(path: Path, graph: PriorGraph, config: dict[str, Any]) -> None:
    """Offer the checkpoint to a model of the same wiring in which one gene has another name."""
    old = graph.nodes[-1]
    edges = [[f"{name}_renamed" if name == old else name for name in edge] for edge in graph.edges]
    renamed = PriorTransformer(PriorGraph.from_edges(edges, sign=graph.sign), **config)
    try:
        load_checkpoint(renamed, torch.load(path, weights_only=True)["model"])
    except PriorGraphError as error:
        print(f"The same graph with {old} renamed to {old}_renamed refuses it:\n  {error}")
    else:
        raise RuntimeError("A checkpoint of another graph must be refused.")


if __name__ == "__main__":
    main()
