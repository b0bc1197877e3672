"""One door to every file format of a prior."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, overload

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.cytoscape import read_cytoscape_json
from pyg_kpnn.prior.gmt import read_gmt
from pyg_kpnn.prior.graph import PriorGraph
from pyg_kpnn.prior.markup import read_gml, read_graphml
from pyg_kpnn.prior.names import show
from pyg_kpnn.prior.readers import read_edgelist
from pyg_kpnn.prior.report import ReadReport
from pyg_kpnn.prior.sif import read_sif
from pyg_kpnn.prior.tables import suffix_of

__all__ = ["read_prior"]

_READERS: dict[str, Callable[..., Any]] = {
    ".sif": read_sif,
    ".gmt": read_gmt,
    ".graphml": read_graphml,
    ".gml": read_gml,
    ".cyjs": read_cytoscape_json,
    ".json": read_cytoscape_json,
    **dict.fromkeys((".csv", ".tsv", ".txt", ".parquet"), read_edgelist),
}


@overload
def read_prior(
    path: str | os.PathLike[str], *, return_report: Literal[False] = ..., **options: Any
) -> PriorGraph: ...


@overload
def read_prior(
    path: str | os.PathLike[str], *, return_report: Literal[True], **options: Any
) -> tuple[PriorGraph, ReadReport]: ...


def read_prior(
    path: str | os.PathLike[str], *, return_report: bool = False, **options: Any
) -> PriorGraph | tuple[PriorGraph, ReadReport]:
    """Read a graph with the reader that belongs to the file's suffix.

    Parameters
    ----------
    path : path
        ``.csv``, ``.tsv``, ``.txt`` and ``.parquet`` (:func:`read_edgelist`), ``.sif``, ``.gmt``,
        ``.graphml``, ``.gml``, ``.cyjs`` and ``.json`` (Cytoscape); those of text also with ``.gz`` behind.
    return_report : bool, default False
        Also return what was read, kept and dropped.
    **options
        Of that reader.

    Returns
    -------
    PriorGraph, or (PriorGraph, ReadReport)

    Raises
    ------
    PriorGraphError
        A suffix of no reader, an option the reader does not have, and whatever the reader refuses.
    """
    name = os.fspath(path)
    suffix = suffix_of(Path(name))
    if suffix not in _READERS:
        raise PriorGraphError(
            f"The suffix of a prior must be one of {', '.join(sorted(_READERS))}. Got {show(name)}. "
            "Call the reader of its format, such as read_edgelist(path, sep=...)."
        )
    reader = _READERS[suffix]
    known = reader.__kwdefaults__ or {}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise PriorGraphError(
            f"{reader.__name__}, which reads {suffix} files, takes {', '.join(known)}. "
            f"Got {', '.join(unknown)}."
        )
    return reader(path, return_report=return_report, **options)
