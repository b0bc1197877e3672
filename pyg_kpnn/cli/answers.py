"""``pyg-kpnn explain`` and ``knockout``: a trained model asked by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..datasets import AlignedDataset
from ..errors import PriorGraphError
from ..prior.names import listing, show
from ..prior.output import text_file
from . import show as screen

__all__ = ["explain_folder", "knock_out", "load_model", "prepared", "save_figure", "write_table"]


class Prepared(NamedTuple):
    """Samples as the model was trained on them."""

    x: Tensor
    mask: Tensor
    groups: list[str] | None


def load_model(path: Path) -> Any:
    """The module of a checkpoint, or of a folder that ``fit`` wrote."""
    from ..train import load

    file = path / "model.ckpt" if path.is_dir() else path
    if not file.is_file():
        raise PriorGraphError(f"A model must be a checkpoint or a folder with model.ckpt. Got {str(path)!r}.")
    return load(file)


def prepared(module: Any, samples: AlignedDataset) -> Prepared:
    """Standardise with the training samples' mean and deviation; what was not measured is 0 and masked."""
    if samples.graph != module.graph:
        raise PriorGraphError(
            "The table must measure the nodes of the model. Got a table that lacks "
            f"{len(samples.report.missing)} of them; pass --missing mask."
        )
    x, y, mask = samples.tensors()
    x = module.standardised(x).masked_fill(mask, 0.0)
    groups = None if y is None else list(samples.label_names)
    return Prepared(x, mask, groups)


def explain_folder(
    module: Any,
    data: Prepared,
    folder: Path,
    top: int,
    compare: tuple[str, str] | None,
    permutations: int,
    seed: int,
) -> Any:
    """Write tables and pictures of the edge weights; returns the strongest edges of the last layer."""
    from ..explain import (
        differential_edges,
        edge_weights,
        plot_edge_heatmap,
        plot_subgraph,
        write_network_html,
    )

    model, graph = module.model, module.graph
    every = edge_weights(model, data.x, key_padding_mask=data.mask)
    every.to_csv(folder / "edge_weights.csv", index=False)
    last = int(every["layer"].max())
    table = edge_weights(model, data.x, key_padding_mask=data.mask, layers=[last], heads="mean")
    given = table.iloc[: graph.nnz]  # without the loops that the model adds to every node
    _try(lambda: write_network_html(given, folder / "network.html", graph=graph))
    save_figure(lambda: plot_subgraph(given, graph=graph, top_k=top), folder / "subgraph.png")
    if data.groups is not None:
        grouped = edge_weights(
            model, data.x, groupby=data.groups, key_padding_mask=data.mask, layers=[last], heads="mean"
        )
        grouped.to_csv(folder / "edge_weights_by_group.csv", index=False)
        own = np.arange(len(grouped)) % len(table) >= graph.nnz  # loops of the model, group by group
        save_figure(lambda: plot_edge_heatmap(grouped[~own], top_k=top), folder / "groups.png")
    if compare is not None:
        differential_edges(
            model,
            data.x,
            data.groups,
            *compare,
            layer=last,
            n_permutations=permutations,
            seed=seed,
            key_padding_mask=data.mask,
        ).to_csv(folder / "differential_edges.csv", index=False)
    from .files import write_json

    write_json({"samples": len(data.x), "layers": last + 1, "compare": compare}, folder / "run.json")
    return given.sort_values("weight", ascending=False, kind="stable").head(top)


def knock_out(module: Any, data: Prepared, nodes: str | None, value: str) -> Any:
    """Changes of the outputs, classes by name."""
    from ..explain import knockout

    wanted = None if nodes is None else [_together(part) for part in nodes.split(",")]
    frame = knockout(module.model, data.x, wanted, value=_value(value), key_padding_mask=data.mask)
    if module.class_names:
        frame["output"] = [module.class_names[int(code)] for code in frame["output"]]
    return frame


def _together(text: str) -> Any:
    names = [name.strip() for name in text.split("+")]
    return names[0] if len(names) == 1 else tuple(names)


def _value(text: str) -> float | str:
    if text in ("mean", "mask"):
        return text
    try:
        return float(text)
    except ValueError:
        raise PriorGraphError(f"--value must be a number, mean or mask. Got {show(text)}.") from None


def write_table(frame: Any, path: Path) -> None:
    """A new .csv or .tsv file, there whole or not at all."""
    separators = {".csv": ",", ".tsv": "\t"}
    if path.suffix not in separators:
        raise PriorGraphError(f"--out must end in {listing(separators)}. Got {show(path.name)}.")
    if path.exists():
        raise PriorGraphError(f"--out must be a new file. Got {str(path)!r}.")
    with text_file(path) as file:
        frame.to_csv(file, index=False, sep=separators[path.suffix])


def save_figure(draw: Callable[[], Any], path: Path) -> None:
    """Draw and save, or say what is missing: tables are worth having without pictures."""
    _try(lambda: draw().figure.savefig(path, dpi=150, bbox_inches="tight"))


def _try(draw: Callable[[], Any]) -> None:
    try:
        draw()
    except ImportError as error:
        screen.notes.print(f"no picture: {error}", highlight=False, markup=False)
