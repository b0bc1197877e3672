"""The commands. Each reads files, calls the library, and prints or writes what it gives."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import PriorGraphError
from . import show
from .options import (
    Data,
    First,
    Force,
    Json,
    Label,
    Lost,
    Minus,
    Missing,
    Model,
    NoLoops,
    Out,
    Plus,
    Prior,
    Rename,
    Sep,
    Sign,
    Source,
    Target,
    Text,
    Turned,
    Undirected,
    Weight,
)

__all__ = ["app", "main"]

app = typer.Typer(
    name="pyg-kpnn",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Attention on a prior graph of named nodes: check a prior, fit a model, read answers by name.",
)


@app.command()
def check(
    prior: Annotated[Path, typer.Argument(help="Edges: .csv .tsv .sif .gmt .graphml .gml .cyjs .parquet")],
    features: Annotated[
        Path | None, typer.Option(help="Table whose names are to be found in the prior")
    ] = None,
    source: Source = None,
    target: Target = None,
    sign: Sign = None,
    weight: Weight = None,
    activating: Plus = None,
    inhibiting: Minus = None,
    drop_self_loops: NoLoops = False,
    keep_first: First = False,
    genes_in_rows: Turned = False,
    sep: Sep = None,
    max_loss: Annotated[float | None, typer.Option(help="Largest share of edges that may be lost")] = None,
    json: Json = False,
) -> None:
    """Read a prior and say what is in it, and how a table's names fit."""
    from ..prior import match
    from . import files

    graph, report = files.load_prior(
        prior, source, target, sign, weight, activating, inhibiting, drop_self_loops, keep_first
    )
    fits = None
    if features is not None:
        fits = match(graph, files.features_of(features, genes_in_rows, sep), max_loss=max_loss)
    if json:
        show.print_json({"prior": report.to_dict(), "features": None if fits is None else fits.to_dict()})
        return
    print(report)
    if fits is not None:
        print(f"\n{fits}")


@app.command()
def fit(
    prior: Prior,
    data: Data,
    out: Out,
    label: Label = None,
    source: Source = None,
    target: Target = None,
    sign: Sign = None,
    weight: Weight = None,
    activating: Plus = None,
    inhibiting: Minus = None,
    drop_self_loops: NoLoops = False,
    keep_first: First = False,
    undirected: Undirected = False,
    genes_in_rows: Turned = False,
    missing: Missing = "error",
    missing_labels: Lost = "error",
    rename: Rename = None,
    sep: Sep = None,
    epochs: Annotated[int, typer.Option(help="Most epochs")] = 100,
    patience: Annotated[
        int, typer.Option(help="Epochs without a better validation loss before it stops")
    ] = 10,
    embed_dim: Annotated[int, typer.Option(help="Width of the model")] = 32,
    num_heads: Annotated[int, typer.Option(help="Attention heads")] = 4,
    num_layers: Annotated[int, typer.Option(help="Layers: how many edges information travels")] = 2,
    shared_head: Annotated[
        bool,
        typer.Option(
            "--shared-head", help="One set of head weights for all nodes, or their mean, not one for each"
        ),
    ] = False,
    dropout: Annotated[float, typer.Option(help="Dropout in training")] = 0.1,
    lr: Annotated[float, typer.Option(help="Learning rate")] = 2e-3,
    batch_size: Annotated[int, typer.Option(help="Samples a step")] = 64,
    seed: Annotated[int, typer.Option(help="Of weights, split and order")] = 0,
    force: Force = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar")] = False,
    json: Json = False,
) -> None:
    """Train on a table: to tell classes with --label, else to restore hidden values."""
    from . import files
    from .fitting import Settings, fit_folder

    graph, report = files.load_prior(
        prior, source, target, sign, weight, activating, inhibiting, drop_self_loops, keep_first, undirected
    )
    samples = files.read_samples(
        data,
        graph,
        label,
        genes_in_rows=genes_in_rows,
        missing=missing,
        missing_labels=missing_labels,
        rename=rename,
        sep=sep,
    )
    settings = Settings(
        epochs,
        patience,
        embed_dim,
        num_heads,
        num_layers,
        shared_head,
        dropout,
        lr,
        batch_size,
        seed,
        quiet or json,
        undirected,
    )
    with files.finished_folder(out, force) as folder:
        run = fit_folder(samples, report, settings, folder)
    if json:
        show.print_json(run)
        return
    show.print_table(
        f"Held out, {run['samples']['test']} samples", ["score", "value"], list(run["test"].items())
    )
    show.wrote(out)


@app.command()
def explain(
    model: Model,
    data: Data,
    out: Out,
    label: Annotated[Text, typer.Option("--label", help="Column to group samples by")] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Two classes of --label: test every edge for a difference"),
    ] = None,
    genes_in_rows: Turned = False,
    missing: Missing = "error",
    missing_labels: Lost = "error",
    sep: Sep = None,
    top: Annotated[int, typer.Option(help="Edges to print and to draw")] = 20,
    permutations: Annotated[int, typer.Option(help="Permutations of --compare")] = 999,
    seed: Annotated[int, typer.Option(help="Of the permutations")] = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write the weights of every edge, by name, as tables and pictures."""
    from . import files
    from .answers import explain_folder, load_model, prepared

    if compare is not None and label is None:
        raise PriorGraphError("--compare needs --label, the column with the two classes. Got none.")
    module = load_model(model)
    samples = files.read_samples(
        data,
        module.graph,
        label,
        genes_in_rows=genes_in_rows,
        missing=missing,
        missing_labels=missing_labels,
        sep=sep,
    )
    with files.finished_folder(out, force) as folder:
        strongest = explain_folder(
            module, prepared(module, samples), folder, top, compare, permutations, seed
        )
    columns = ["source", "target", "weight", "std"]
    rows = strongest[columns].astype({"source": str, "target": str}).values.tolist()
    if json:
        show.print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    show.print_table(f"Strongest edges, last layer, {len(samples)} samples", columns, rows)
    show.wrote(out)


@app.command()
def knockout(
    model: Model,
    data: Data,
    nodes: Annotated[
        Text, typer.Option(help="Names with commas between; A+B are taken out together. All by default")
    ] = None,
    value: Annotated[str, typer.Option(help="A number of the standardised scale, mean, or mask")] = "mean",
    genes_in_rows: Turned = False,
    missing: Missing = "error",
    sep: Sep = None,
    top: Annotated[int, typer.Option(help="Rows to print")] = 20,
    out: Annotated[Path | None, typer.Option(help="New file for all rows, .csv or .tsv")] = None,
    json: Json = False,
) -> None:
    """Take nodes out, one by one, and say how the outputs change."""
    from . import files
    from .answers import knock_out, load_model, prepared, write_table

    module = load_model(model)
    samples = files.read_samples(
        data, module.graph, None, genes_in_rows=genes_in_rows, missing=missing, sep=sep
    )
    frame = knock_out(module, prepared(module, samples), nodes, value)
    if out is not None:
        write_table(frame, out)
    order = frame["change"].abs().sort_values(ascending=False, kind="stable").index
    rows = frame.loc[order[:top]].astype({"node": str, "output": str})
    if json:
        show.print_json(rows.to_dict("records"))
        return
    show.print_table(
        f"Largest changes, mean of {len(samples)} samples", list(rows.columns), rows.values.tolist()
    )


@app.command()
def audit(
    prior: Prior,
    data: Data,
    label: Annotated[str, typer.Option("--label", help="Column with the class of each sample")],
    null: Annotated[
        str,
        typer.Option(
            help="What random graphs share with the prior, with commas between: degree, sign, component, "
            "labels, density"
        ),
    ] = "degree",
    n: Annotated[int, typer.Option("--n", help="Random graphs of each null")] = 99,
    steps: Annotated[int, typer.Option(help="Training steps of every fit")] = 100,
    level: Annotated[float, typer.Option(help="Level of the test")] = 0.05,
    source: Source = None,
    target: Target = None,
    sign: Sign = None,
    weight: Weight = None,
    activating: Plus = None,
    inhibiting: Minus = None,
    drop_self_loops: NoLoops = False,
    keep_first: First = False,
    genes_in_rows: Turned = False,
    missing: Missing = "error",
    missing_labels: Lost = "error",
    rename: Rename = None,
    sep: Sep = None,
    seed: Annotated[int, typer.Option(help="Of the split, the random graphs and the fits")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="New folder for the report")] = None,
    force: Force = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar")] = False,
    json: Json = False,
) -> None:
    """Ask whether the prior tells classes apart better than random graphs that resemble it."""
    from . import files
    from .auditing import audit_samples, write_audit

    graph, _ = files.load_prior(
        prior, source, target, sign, weight, activating, inhibiting, drop_self_loops, keep_first
    )
    samples = files.read_samples(
        data,
        graph,
        label,
        genes_in_rows=genes_in_rows,
        missing=missing,
        missing_labels=missing_labels,
        rename=rename,
        sep=sep,
    )
    how = (samples, null, n, steps, level, seed, not (quiet or json))
    if out is None:
        report = audit_samples(*how)
    else:
        with files.finished_folder(out, force) as folder:
            report = audit_samples(*how)
            write_audit(report, folder)
    if json:
        show.print_json(report.to_dict())
        return
    print(report)
    if out is not None:
        show.wrote(out)


@app.command()
def bench(
    nodes: Annotated[int, typer.Option(help="Nodes of a random graph")] = 2000,
    edges: Annotated[int, typer.Option(help="Edges")] = 40000,
    samples: Annotated[int, typer.Option(help="Samples a batch")] = 8,
    heads: Annotated[int, typer.Option(help="Heads")] = 4,
    head_dim: Annotated[int, typer.Option(help="Channels a head")] = 16,
    rounds: Annotated[int, typer.Option(help="Rounds; every backend takes its turn in each")] = 5,
    json: Json = False,
) -> None:
    """Time the backends that are here, in turns, on one random graph."""
    from .bench import compare_backends

    rows = compare_backends(nodes, edges, samples, heads, head_dim, rounds)
    if json:
        show.print_json(rows)
        return
    title = f"{nodes} nodes, {edges} edges, {samples} samples, {heads} heads of {head_dim}: median ms"
    show.print_table(title, list(rows[0]), [list(row.values()) for row in rows])


@app.command()
def info(json: Json = False) -> None:
    """Versions, backends and threads."""
    from .bench import environment

    found = environment()
    if json:
        show.print_json(found)
        return
    for title, entries in found.items():
        show.print_table(title, ["name", "value"], list(entries.items()))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input is one line on stderr and exit status 1."""
    try:
        app(args=arguments)
    except (PriorGraphError, ImportError) as error:  # ImportError: an extra that is not there
        sys.stderr.write(show.error_line(error) + "\n")
        sys.exit(1)
