"""Single-cell tables as samples over a prior graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pyg_kpnn.datasets.aligned import AlignedDataset, fit_graph
from pyg_kpnn.datasets.labels import Classes, classes_of, unique_samples
from pyg_kpnn.datasets.stores import BackedStore, Store, store_of
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, match
from pyg_kpnn.prior.align import is_anndata, named_columns
from pyg_kpnn.prior.names import listing, near_names, show

__all__ = ["from_anndata"]


def from_anndata(
    adata: Any,
    graph: PriorGraph,
    layer: str | None = None,
    obs_key: str | None = "cell_type",
    *,
    raw: bool = False,
    missing: str = "error",
    max_loss: float | None = None,
    isolated: str = "keep",
    missing_labels: str = "error",
    dtype: torch.dtype = torch.float32,
) -> AlignedDataset:
    """Cells of an AnnData in the order of the graph's nodes, by name.

    A sparse matrix stays sparse, and is made dense a batch at a time; a backed one stays in its file. Of
    a matrix in memory the columns needed are copied, so later changes to ``adata`` do not come through.

    Parameters
    ----------
    adata : anndata.AnnData
        Cells in ``obs``, genes in ``var``; opened with ``backed="r"`` too.
    graph : PriorGraph
        Nodes named as in ``adata.var_names``; of a bipartite graph the source side.
    layer : str, optional
        Read this layer instead of ``X``.
    obs_key : str or None, default "cell_type"
        Column of ``obs`` with the classes; None for cells without labels.
    raw : bool, default False
        Read ``adata.raw`` and its names instead.
    missing : {"error", "mask", "restrict"}, default "error"
        Nodes without a gene: an error with hints; not measured in any cell; or dropped from the graph
        (``dataset.graph``).
    max_loss : float, optional
        As in :func:`~pyg_kpnn.prior.match`: the largest share of edges that may have an unmeasured end.
    isolated : {"keep", "drop"}, default "keep"
        Nodes left without an edge under ``missing="restrict"``.
    missing_labels : {"error", "drop"}, default "error"
        Cells without a label: an error by name, or left out and listed in ``dataset.dropped``.
    dtype : torch.dtype, default torch.float32
        Of the values; or ``torch.float64``.

    Returns
    -------
    AlignedDataset

    Raises
    ------
    PriorGraphError
        Names that do not fit or occur twice, an unknown layer or column, missing labels, values that are
        no numbers. Infinite values are found when a batch is drawn.

    Examples
    --------
    >>> import anndata, numpy as np, pandas as pd
    >>> obs = pd.DataFrame({"cell_type": ["T", "B"]}, index=["cell1", "cell2"])
    >>> cells = anndata.AnnData(np.float32([[1, 2, 3], [4, 5, 6]]), obs, pd.DataFrame(index=["c", "a", "b"]))
    >>> data = from_anndata(cells, PriorGraph.from_edges([("a", "b")]))
    >>> data, data.class_names
    (AlignedDataset(2 samples, 2 nodes, 2 classes), ('B', 'T'))
    >>> data[0]
    Sample(x=tensor([2., 3.]), y=tensor(1), mask=tensor([False, False]))
    """
    if not is_anndata(adata):
        raise PriorGraphError(
            f"'adata' must be an AnnData. Got {type(adata).__name__}. Read a file with anndata.read_h5ad "
            '(pip install "pyg_kpnn[anndata]"); for a DataFrame use from_frame.'
        )
    if not isinstance(raw, (bool, np.bool_)):
        raise PriorGraphError(f"'raw' must be True or False. Got {show(raw)}.")
    if raw and layer is not None:
        raise PriorGraphError(f"'layer' and 'raw' exclude each other. Got layer={show(layer)} and raw=True.")
    if raw and adata.raw is None:
        raise PriorGraphError("raw=True needs adata.raw. Got an AnnData without it.")
    names = list(adata.raw.var_names if raw else adata.var_names)
    at = named_columns(names, "var_names")
    # rows are known only to adata itself, which says whether it is turned
    report = match(graph, names if raw else adata, max_loss=max_loss)
    samples = unique_samples(adata.obs_names, "Call adata.obs_names_make_unique().")
    classes = _labels(adata.obs, obs_key, samples, missing_labels)
    fitted = fit_graph(graph, report, missing, isolated)
    columns = np.array([at[name] for name in fitted.source_nodes if name in at], dtype=np.int64)
    store = _store(adata, layer, raw, columns, len(names))
    return AlignedDataset(fitted, report, store, samples, classes, dtype)


def _labels(obs: Any, key: Any, samples: tuple[str, ...], missing: str) -> Classes | None:
    if key is None:
        return None
    known = list(obs.columns)
    if not isinstance(key, str) or known.count(key) != 1:
        texts = [name for name in known if isinstance(name, str)]
        hint = near_names(key, texts) if isinstance(key, str) else ""
        raise PriorGraphError(
            f"'obs_key' must name one column of obs. Got {show(key)}{hint}; there are "
            f"{listing(map(show, known), len(known)) or 'none'}. Pass obs_key=None for no labels."
        )
    return classes_of(obs[key], samples, missing, f"obs[{key!r}]")


def _store(adata: Any, layer: str | None, raw: bool, columns: np.ndarray, width: int) -> Store:
    if layer is not None and (not isinstance(layer, str) or layer not in adata.layers):
        layers = list(adata.layers)
        hint = near_names(layer, layers) if isinstance(layer, str) else ""
        raise PriorGraphError(
            f"'layer' must be a layer of adata. Got {show(layer)}{hint}; there are "
            f"{listing(map(show, layers), len(layers)) or 'none'}."
        )
    key, what = ("raw/X", "adata.raw.X") if raw else ("X", "adata.X")
    if layer is not None:
        key, what = f"layers/{layer}", f"layer {show(layer)}"
    # of a backed AnnData anndata itself keeps the layers in memory
    if getattr(adata, "isbacked", False) and layer is None:
        if adata.is_view:
            raise PriorGraphError(
                "A backed AnnData must be the whole file. Got a view of one. Pass adata.to_memory(), or "
                "choose samples of the dataset."
            )
        return BackedStore(str(adata.filename), key, columns, width)
    values = adata.raw.X if raw else adata.X if layer is None else adata.layers[layer]
    if values is None:
        raise PriorGraphError(f"{what} must hold the values. Got None. Pass layer=.")
    return store_of(values, columns, what)
