"""Tables of pandas as samples over a prior graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pyg_kpnn.datasets.aligned import AlignedDataset, fit_graph
from pyg_kpnn.datasets.labels import Classes, classes_of, unique_samples
from pyg_kpnn.datasets.stores import DenseStore
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, match
from pyg_kpnn.prior.align import named_columns, need_graph
from pyg_kpnn.prior.names import is_frame, is_missing, listing, name_of, near_names, show

__all__ = ["from_frame"]


def from_frame(
    frame: Any,
    graph: PriorGraph,
    label: Any = None,
    *,
    genes_in_rows: bool = False,
    missing: str = "error",
    max_loss: float | None = None,
    isolated: str = "keep",
    missing_labels: str = "error",
    dtype: torch.dtype = torch.float32,
) -> AlignedDataset:
    """Rows of a pandas table in the order of the graph's nodes, by name.

    Parameters
    ----------
    frame : pandas.DataFrame
        Samples in rows, measured names in columns; missing cells are not measured.
    graph : PriorGraph
        Of a bipartite graph the source side is aligned.
    label : str, pandas.Series or mapping, optional
        The column with the classes, or the class of each sample by its name (entries for other samples
        are not used). Default: None, no labels.
    genes_in_rows : bool, default False
        The table is turned: names in the index, samples in columns. ``label`` may then name a row.
    missing, max_loss, isolated, missing_labels, dtype
        As in :func:`~pyg_kpnn.datasets.from_anndata`.

    Returns
    -------
    AlignedDataset

    Raises
    ------
    PriorGraphError
        Names that do not fit or occur twice, a column that holds no numbers, missing labels, bad arguments.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"b": [1.0, None], "a": [3.0, 4.0], "group": ["x", "y"]}, index=["s1", "s2"])
    >>> data = from_frame(table, PriorGraph.from_edges([("a", "b")]), label="group")
    >>> data[1]
    Sample(x=tensor([4., nan]), y=tensor(1), mask=tensor([False,  True]))
    """
    if not is_frame(frame):
        raise PriorGraphError(
            f"'frame' must be a pandas.DataFrame. Got {type(frame).__name__}. For AnnData use from_anndata."
        )
    if not isinstance(genes_in_rows, (bool, np.bool_)):
        raise PriorGraphError(f"'genes_in_rows' must be True or False. Got {show(genes_in_rows)}.")
    need_graph(graph)
    if genes_in_rows:
        frame = frame.T
    at = named_columns(frame, "frame")
    if isinstance(label, str) and label in at and label in graph.source_nodes:
        raise PriorGraphError(f"'label' must not be a node of the graph. Got {show(label)}.")
    report = match(graph, frame if label is None else _without(frame, label, at), max_loss=max_loss)
    if report.in_rows and missing == "error":
        raise PriorGraphError(
            f"Every node must have a column. Got {report.in_rows} of {len(report.missing)} missing nodes in "
            f"the {'columns' if genes_in_rows else 'index'}. Pass genes_in_rows={not genes_in_rows}."
        )
    samples = unique_samples(frame.index, "Call frame.reset_index(drop=True), or give each row a name.")
    if not samples:
        raise PriorGraphError("A table must have at least one sample. Got none.")
    classes = _labels(frame, label, at, samples, missing_labels)
    fitted = fit_graph(graph, report, missing, isolated)
    places = [at[name] for name in fitted.source_nodes if name in at]
    values = _numbers(frame.iloc[:, places], np.float64 if dtype == torch.float64 else np.float32)
    return AlignedDataset(fitted, report, DenseStore(values, np.arange(len(places))), samples, classes, dtype)


def _without(frame: Any, label: Any, at: dict[str, int]) -> Any:
    """The frame without its column of labels, which is no feature."""
    if not isinstance(label, str) or label not in at:
        return frame
    return frame.iloc[:, [place for place in range(frame.shape[1]) if place != at[label]]]


def _labels(
    frame: Any, label: Any, at: dict[str, int], samples: tuple[str, ...], missing: str
) -> Classes | None:
    import pandas as pd

    if label is None:
        return None
    if isinstance(label, str):
        if label not in at:
            hint = near_names(label, list(at)) or f", and columns {listing(map(show, at), len(at))}"
            if label in map(str, frame.index):
                hint = ", which is a row: the table is turned. Pass genes_in_rows=True"
            raise PriorGraphError(f"'label' must name a column. Got {show(label)}{hint}.")
        column = frame.iloc[:, at[label]]
        return classes_of(column.infer_objects(), samples, missing, f"column {show(label)}")
    if hasattr(label, "items") and not is_frame(label):
        series = label if isinstance(label, pd.Series) else pd.Series(dict(label), dtype=object)
        place: dict[str, int] = {}
        for row, name in enumerate(series.index):
            text = name_of(name, "Sample names")
            if place.setdefault(text, row) != row:
                raise PriorGraphError(f"'label' must name each sample once. Got {show(text)} twice.")
        if not any(name in place for name in samples):
            raise PriorGraphError(
                f"'label' must be indexed by the names of the samples, as {show(samples[0])}. Got "
                f"{listing(map(show, place), len(place)) or 'none'}."
            )
        if not isinstance(label, pd.Series):
            series = series.infer_objects()
        column = series.reset_index(drop=True).reindex([place.get(name, -1) for name in samples])
        return classes_of(column, samples, missing, "'label'")
    raise PriorGraphError(
        "'label' must be the name of a column, or a Series or mapping by sample. Got "
        f"{show(label)} ({type(label).__name__}). Give a list an index: pandas.Series(labels, frame.index)."
    )


def _numbers(table: Any, kind: Any) -> np.ndarray:
    """The columns as one array, NaN for missing cells; text is no number."""
    with np.errstate(over="ignore"):  # what overflows is infinite, and refused with its names
        if all(isinstance(column, np.dtype) and column.kind in "fiub" for column in table.dtypes):
            return np.asarray(table.to_numpy(dtype=kind))
        out = np.empty(table.shape, dtype=kind)
        for place in range(table.shape[1]):
            out[:, place] = _checked(table.iloc[:, place], table.columns[place]).to_numpy(dtype=kind)
    return out


def _checked(column: Any, name: Any) -> Any:
    """One column as float64 or a narrower kind; numbers written as text are not taken for numbers."""
    import pandas as pd

    if not pd.api.types.is_numeric_dtype(column.dtype) or column.dtype.kind == "c":
        odd = [
            (row, value)
            for row, value in zip(column.index, column.tolist(), strict=True)
            if not is_missing(value) and not isinstance(value, (int, float, np.number, np.bool_))
        ]
        if odd:  # one word makes a whole column text: name that word, not a number beside it
            words = [(row, value) for row, value in odd if not _reads_as_number(value)]
            row, value = (words or odd)[0]
            more = f", and {len(words) - 1} more in that column" if len(words) > 1 else ""
            raise PriorGraphError(
                f"Measurements must be numbers. Got {show(value)} ({type(value).__name__}) in column "
                f"{show(name)}, row {show(row)}{more}."
            )
    return pd.Series(column.to_numpy(dtype=np.float64, na_value=np.nan), index=column.index)


def _reads_as_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
