"""Graphs into tables, SIF and GMT: what is written reads back as the same graph, or it is not written."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.graph_files import write_cytoscape_json, write_graphml
from pyg_kpnn.prior.names import listing, show
from pyg_kpnn.prior.output import check_graph, isolated, no_room, refuse_names, text_file, unquoted, whole
from pyg_kpnn.prior.tables import looks_like_rules, separator, suffix_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["write_cytoscape_json", "write_edgelist", "write_gmt", "write_graphml", "write_sif"]

_LONGEST_CELL = 131_072


def write_edgelist(
    graph: PriorGraph, path: str | os.PathLike[str], *, sep: str | None = None, leave_out: Iterable[str] = ()
) -> None:
    """Write a table with columns source and target, and sign and weight where the graph has them.

    Reading it back takes ``sign="sign"``, ``weight="weight"`` where they were written, and
    ``bipartite=True`` for a bipartite graph. The file is whole or not there: it is written beside its place
    and moved in.

    Parameters
    ----------
    graph : PriorGraph
        Any; an edge table has no room for isolated nodes and widths.
    path : path
        ``.csv``, ``.tsv`` or ``.txt``, also with ``.gz``, or ``.parquet`` (extra ``parquet``).
    sep : str, optional
        One character; by default chosen by the suffix.
    leave_out : iterable of {"isolated", "signs", "weights", "widths"}, default none
        What may be lost; ``read_edgelist(path, nodes=graph.nodes, widths=graph.widths)`` brings isolated
        nodes and widths back.

    Raises
    ------
    PriorGraphError
        A graph with isolated nodes or widths unless ``leave_out`` allows it; in text, names that would not
        come back (blanks around them, NUL characters, more than 131,072 characters).

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from pyg_kpnn.prior import read_edgelist
    >>> graph = PriorGraph.from_edges([("a, b", "c")], weight=[0.1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "net.csv.gz")
    ...     write_edgelist(graph, path)
    ...     read_edgelist(path, weight="weight") == graph
    True
    """
    path = Path(path)
    allowed = check_graph(graph, path, leave_out, ("isolated", "widths"))
    frame = graph.to_edgelist()
    frame = frame.drop(
        columns=[part[:-1] for part in ("signs", "weights") if part in allowed], errors="ignore"
    )
    if suffix_of(path) == ".parquet":
        _write_parquet(frame, path)
        return
    mark = separator(path, sep)
    if len(mark) != 1:
        raise PriorGraphError(f"'sep' must be one character. Got {mark!r}.")
    refuse_names(
        [*frame["source"], *frame["target"]],
        lambda name: name != name.strip() or "\0" in name or len(name) > _LONGEST_CELL,
        f"a text table has no blanks around names, no NUL characters and at most {_LONGEST_CELL:,} "
        "characters in a cell. Write parquet or GraphML.",
    )
    rule = looks_like_rules(frame["source"], frame["target"])
    if rule is not None:
        raise PriorGraphError(
            f"Targets must not read like Boolean rules, which read_edgelist refuses. Got "
            f"{show(frame['target'][rule])}. Write parquet or GraphML."
        )
    with text_file(path) as file:
        # quoted names cannot be taken for a byte order mark, a comment or a number
        writer = csv.writer(file, delimiter=mark, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        writer.writerow(frame.columns)
        writer.writerows(zip(*(frame[column].tolist() for column in frame.columns), strict=True))


def write_sif(
    graph: PriorGraph,
    path: str | os.PathLike[str],
    *,
    types: Mapping[int, str] | None = None,
    leave_out: Iterable[str] = (),
) -> None:
    """Write ``source<tab>type<tab>target`` lines, and a line for every isolated node.

    Parameters
    ----------
    graph : PriorGraph
        Not bipartite; SIF has no room for weights and widths.
    path : path
        Any suffix; ``.gz`` is packed.
    types : mapping from 1, -1 and 0 to text, optional
        How signs are written; by default ``"1"``, ``"-1"`` and ``"0"`` (unknown). Other words need a
        ``sign_map`` to be read, unless they are in the built-in table.
    leave_out : iterable of {"isolated", "signs", "weights", "widths"}, default none
        What may be lost.

    Raises
    ------
    PriorGraphError
        A bipartite graph; weights or widths unless ``leave_out`` allows it; names with tabs, line ends,
        NUL characters or blanks around them, since SIF has no quotes.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> graph = PriorGraph.from_edges([("EGF", "Ras"), ("Akt", "Ras")], sign=[1, -1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "net.sif")
    ...     write_sif(graph, path, types={1: "activates", -1: "inhibits", 0: "unknown"})
    ...     path.read_text().splitlines()
    ['Akt\\tinhibits\\tRas', 'EGF\\tactivates\\tRas']
    """
    path = Path(path)
    allowed = check_graph(graph, path, leave_out, ("weights", "widths"))
    if graph.is_bipartite:
        raise PriorGraphError(
            f"A SIF file has one set of nodes. Got a bipartite graph for {path.name}. Write GMT or GraphML."
        )
    words = {1: "1", -1: "-1", 0: "0"} if types is None else types
    cells = [words.get(sign) if isinstance(words, Mapping) else None for sign in (1, -1, 0)]
    if any(not isinstance(word, str) or unquoted(word) or not word for word in cells):
        raise PriorGraphError(
            f"'types' must map 1, -1 and 0 onto words without tabs and line ends. Got {show(types)}."
        )
    refuse_names(graph.nodes, unquoted, "SIF has no quotes. Write CSV or GraphML.")
    signs = None if "signs" in allowed else graph._sign
    kinds = [words[0]] * graph.num_edges if signs is None else [words[sign] for sign in signs.tolist()]
    with text_file(path) as file:
        file.writelines(f"{s}\t{kind}\t{t}\n" for (s, t), kind in zip(graph.edges, kinds, strict=True))
        if "isolated" not in allowed:
            file.writelines(f"{name}\n" for name in isolated(graph))


def write_gmt(
    graph: PriorGraph,
    path: str | os.PathLike[str],
    *,
    description: str = "na",
    leave_out: Iterable[str] = (),
) -> None:
    """Write a bipartite graph as gene sets: a line for every target, with its sources.

    Parameters
    ----------
    graph : PriorGraph
        Bipartite, genes → sets. GMT has no room for genes in no set, signs, weights and widths.
    path : path
        Any suffix; ``.gz`` is packed.
    description : str, default "na"
        The second cell of every line.
    leave_out : iterable of {"isolated", "signs", "weights", "widths"}, default none
        What may be lost.

    Raises
    ------
    PriorGraphError
        A graph of one set of nodes; what GMT has no room for, unless ``leave_out`` allows it; names with
        tabs, line ends, NUL characters or blanks around them, since GMT has no quotes.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> graph = PriorGraph.bipartite([("BAX", "apoptosis"), ("TP53", "apoptosis"), ("MYC", "growth")])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "sets.gmt")
    ...     write_gmt(graph, path)
    ...     path.read_text().splitlines()
    ['apoptosis\\tna\\tBAX\\tTP53', 'growth\\tna\\tMYC']
    """
    path = Path(path)
    check_graph(graph, path, leave_out, ("signs", "weights", "widths"))
    if not graph.is_bipartite:
        raise PriorGraphError(
            f"A GMT file holds genes and sets. Got a graph of one set of nodes for {path.name}. Build it "
            "with PriorGraph.bipartite, or write CSV or GraphML."
        )
    if not isinstance(description, str) or unquoted(description):
        raise PriorGraphError(
            f"'description' must be text without tabs and line ends. Got {show(description)}."
        )
    lost = np.setdiff1d(np.arange(len(graph.source_nodes)), graph._source)
    if len(lost) and "isolated" not in leave_out:
        names = [show(graph.source_nodes[i]) for i in lost.tolist()]
        raise no_room(path, "sources in no set", listing(names), "isolated")
    refuse_names(graph.nodes, unquoted, "GMT has no quotes. Write CSV or GraphML.")
    members: list[list[str]] = [[] for _ in graph.target_nodes]
    for s, t in zip(graph._source.tolist(), graph._target.tolist(), strict=True):
        members[t].append(graph.source_nodes[s])
    with text_file(path) as file:
        for name, genes in zip(graph.target_nodes, members, strict=True):
            file.write("\t".join((name, description, *genes)) + "\n")


def _write_parquet(frame: pd.DataFrame, path: Path) -> None:
    try:
        import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
        import pyarrow.parquet as pq  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError(
            'Parquet files are written with pyarrow. Got none. Install it: pip install "pyg_kpnn[parquet]"'
        ) from error
    # from lists: pandas would be written into the file with an index of its own
    table = pa.table({column: frame[column].tolist() for column in frame.columns})
    with whole(path) as file:
        pq.write_table(table, file)
