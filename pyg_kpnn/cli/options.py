"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Data",
    "First",
    "Force",
    "Json",
    "Label",
    "Lost",
    "Minus",
    "Missing",
    "Model",
    "NoLoops",
    "Out",
    "Plus",
    "Prior",
    "Rename",
    "Sep",
    "Sign",
    "Source",
    "Target",
    "Text",
    "Turned",
    "Undirected",
    "Weight",
]

Text = str | None
Prior = Annotated[
    Path, typer.Option("--prior", help="Edges: .csv .tsv .sif .gmt .graphml .gml .cyjs .parquet")
]
Data = Annotated[Path, typer.Option("--data", help="Measurements: .csv .tsv .parquet .h5ad, samples in rows")]
Label = Annotated[Text, typer.Option("--label", help="Column with the class of each sample")]
Source = Annotated[Text, typer.Option("--source", help="Column of the prior with the sources")]
Target = Annotated[Text, typer.Option("--target", help="Column of the prior with the targets")]
Sign = Annotated[Text, typer.Option("--sign", help="Column (or attribute) of the prior with the signs")]
Weight = Annotated[Text, typer.Option("--weight", help="Column (or attribute) of the prior with the weights")]
Plus = Annotated[Text, typer.Option("--activating", help="More words for sign +1, with commas between")]
Minus = Annotated[Text, typer.Option("--inhibiting", help="More words for sign -1, with commas between")]
NoLoops = Annotated[bool, typer.Option("--drop-self-loops", help="Leave out edges from a node to itself")]
First = Annotated[
    bool,
    typer.Option("--keep-first", help="Keep the first of repeated edges; without sign where signs differ"),
]
Undirected = Annotated[
    bool,
    typer.Option("--undirected", help="Add the way back of every edge, better for telling hidden values"),
]
Turned = Annotated[bool, typer.Option("--genes-in-rows", help="The table is turned: names in rows")]
Missing = Annotated[
    str,
    typer.Option(
        "--missing", help="Nodes that the table lacks: error, mask (not measured) or restrict (drop)"
    ),
]
Lost = Annotated[str, typer.Option("--missing-labels", help="Samples without a label: error, or drop them")]
Rename = Annotated[
    Text,
    typer.Option(
        "--rename",
        help="Nodes of the prior as the table calls them, TP53=Tp53 with commas between; auto: all that "
        "check --features is sure of",
    ),
]
Sep = Annotated[Text, typer.Option("--sep", help="What is between the columns of the table, as ;")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON")]
Out = Annotated[Path, typer.Option("--out", help="New folder for the results")]
Force = Annotated[bool, typer.Option("--force", help="Replace a folder of earlier results")]
Model = Annotated[Path, typer.Argument(help="model.ckpt, or the folder that fit wrote")]
