"""Samples of a table in the order of a graph's nodes, dense only a batch at a time."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch_geometric.data import Data
from torch_geometric.data import Dataset as GraphDataset

from pyg_kpnn.datasets.labels import Classes
from pyg_kpnn.datasets.stores import Store
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import MatchReport, PriorGraph
from pyg_kpnn.prior.names import ascii_or_show, brief, check_choice, show

__all__ = ["AlignedDataset", "AlignedGraphs", "Sample", "fit_graph"]


class Sample(NamedTuple):
    """One sample, or a batch of them, with n units.

    Attributes
    ----------
    x : Tensor
        (n,) or (B, n) values in the order of ``graph.nodes``, NaN where not measured.
    y : Tensor
        () or (B,) int64, the class.
    mask : Tensor
        bool like ``x``, True = not measured; a ``key_padding_mask``.
    """

    x: Tensor
    y: Tensor
    mask: Tensor


def fit_graph(graph: PriorGraph, report: MatchReport, missing: str, isolated: str) -> PriorGraph:
    """The graph to align to, under ``missing="error"``, ``"mask"`` or ``"restrict"``."""
    check_choice(missing, ("error", "mask", "restrict"), "missing")
    check_choice(isolated, ("keep", "drop"), "isolated")
    if not report.missing:
        return graph
    if missing == "error":
        turned = (
            f" {report.in_rows} of them are names of rows: the table is turned." if report.in_rows else ""
        )
        raise PriorGraphError(
            f"Every node must be measured. Got nothing for {len(report.missing)} of {report.num_nodes} "
            f"nodes: {report.missing_shown()}.{turned} Pass missing='mask' to mask them in every sample, "
            "missing='restrict' to drop them, or rename first (match(...).renames())."
        )
    if not report.matched:
        raise PriorGraphError(f"At least one node must be measured. Got none.\n{report}")
    named_otherwise = report.renames()
    if named_otherwise:
        one, other = next(iter(named_otherwise.items()))
        warnings.warn(
            f"{len(named_otherwise)} of the {len(report.missing)} nodes that are not measured seem to be in "
            f"the table under another name, as {show(one)} under {ascii_or_show(other)}. Rename them first: "
            "graph.rename(match(...).renames()).",
            stacklevel=3,
        )
    if missing == "mask":
        return graph
    return graph.restrict_to(report.matched, isolated=isolated)


class AlignedDataset(Dataset[Any]):
    """Samples whose columns are the nodes of a graph; made by ``from_anndata`` and ``from_frame``.

    ``dataset[i]`` is a :class:`Sample` of one row. A slice, list, mask or tensor of positions gives a smaller
    dataset on the same store. A ``DataLoader`` of torch or of PyG fetches whole batches at once and returns
    them as one :class:`Sample`; without labels the samples are ``x`` alone.

    A node of width w stands in w columns with the same value, as layers are built over units. In a
    bipartite graph the columns are the units of the source side.

    Attributes
    ----------
    graph : PriorGraph
        The graph that the columns follow.
    report : MatchReport
        How the names fitted, before anything was dropped or masked.
    class_names : tuple of str
        Name of every class, empty without labels.
    sample_names : tuple of str
        Names of the samples, in order.
    dropped : tuple of str
        Names of the samples left out for want of a label.
    unmeasured : tuple of str
        Nodes masked in every sample, as the table has no column for them.
    """

    def __init__(
        self,
        graph: PriorGraph,
        report: MatchReport,
        store: Store,
        samples: Sequence[str],
        classes: Classes | None,
        dtype: torch.dtype,
    ) -> None:
        if not isinstance(dtype, torch.dtype) or dtype not in (torch.float32, torch.float64):
            raise PriorGraphError(f"'dtype' must be torch.float32 or torch.float64. Got {show(dtype)}.")
        self.graph, self.report = graph, report
        self._store, self._dtype = store, dtype
        self._names = np.array(samples, dtype=object)
        self.class_names: tuple[str, ...] = () if classes is None else classes.names
        self._rows = np.arange(len(samples)) if classes is None else classes.kept
        self._codes = None if classes is None else np.full(len(samples), -1, dtype=np.int64)
        if classes is not None and self._codes is not None:
            self._codes[classes.kept] = classes.codes
        without = np.setdiff1d(np.arange(len(samples)), self._rows)
        self.dropped: tuple[str, ...] = tuple(self._names[without].tolist())
        known = set(report.matched)
        self.unmeasured: tuple[str, ...] = tuple(name for name in graph.source_nodes if name not in known)
        has = np.array([name in known for name in graph.source_nodes], dtype=bool)
        # the store has one column a measured node, in the order of the nodes
        self._column = np.repeat(np.where(has, np.cumsum(has) - 1, -1), graph._side_widths[0])

    # --- rows ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._rows)

    def _positions(self, index: Any) -> np.ndarray:
        if isinstance(index, slice):
            return self._rows[index]
        if isinstance(index, Tensor):
            index = index.detach().cpu().numpy()
        places = np.asarray(index)
        if places.size == 0:
            places = places.astype(np.int64)
        if places.dtype == bool and places.shape == (len(self),):
            return self._rows[places]
        if places.ndim != 1 or places.dtype.kind not in "iu":
            raise PriorGraphError(
                f"Samples are chosen by position: an int, a slice, a sequence of ints, or a mask of length "
                f"{len(self)}. Got {show(index)}."
            )
        wrong = places[(places < -len(self)) | (places >= len(self))]
        if len(wrong):
            raise IndexError(f"sample {int(wrong[0])} of {len(self)}")
        return self._rows[places]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
            return self.__getitems__([int(index)])[0]
        part = copy.copy(self)
        part._rows = self._positions(index)
        return part

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Samples at many positions, read at once."""
        x, y, mask = self._read(self._positions(indices))
        return list(x) if y is None else list(map(Sample, x, y, mask))

    def _read(self, rows: np.ndarray) -> tuple[Tensor, Tensor | None, Tensor]:
        kind = np.dtype(np.float64 if self._dtype == torch.float64 else np.float32)
        values = self._store.rows(rows, kind)
        if np.isinf(values).any():
            row, column = (int(i[0]) for i in np.nonzero(np.isinf(values)))
            unit = int(np.flatnonzero(self._column == column)[0])
            nodes, widths = self.graph.source_nodes, self.graph._side_widths[0]
            node = nodes[int(np.repeat(np.arange(len(nodes)), widths)[unit])]
            raise PriorGraphError(
                f"Values must be finite in {kind}, or NaN where not measured. Got "
                f"{float(values[row, column])} for sample {show(self._names[rows[row]])}, node {show(node)}."
            )
        full = np.full((len(rows), len(self._column)), np.nan, dtype=kind)
        there = self._column >= 0
        full[:, there] = values[:, self._column[there]]
        x = torch.from_numpy(full)
        return x, None if self._codes is None else torch.from_numpy(self._codes[rows]), x.isnan()

    def tensors(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """All samples at once, dense: ``x`` (N, n), ``y`` (N,) or None, ``mask`` (N, n)."""
        return self._read(self._rows)

    def as_graphs(self) -> AlignedGraphs:
        """The same samples as PyG ``Data``, one graph each; see :class:`AlignedGraphs`."""
        return AlignedGraphs(self)

    # --- what is there ---------------------------------------------------------------------------

    @property
    def labels(self) -> Tensor | None:
        """Class of every sample, (N,) int64, or None."""
        return None if self._codes is None else torch.from_numpy(self._codes[self._rows])

    @property
    def label_names(self) -> tuple[str, ...]:
        """Name of the class of every sample, in order; empty without labels."""
        labels = self.labels
        return () if labels is None else tuple(self.class_names[code] for code in labels.tolist())

    @property
    def num_classes(self) -> int:
        """Number of classes, those without a sample too."""
        return len(self.class_names)

    @property
    def sample_names(self) -> tuple[str, ...]:
        return tuple(self._names[self._rows].tolist())

    def class_counts(self) -> dict[str, int]:
        """Number of samples of each class, by name, zeros included."""
        if self._codes is None:
            return {}
        counts = np.bincount(self._codes[self._rows], minlength=self.num_classes).tolist()
        return dict(zip(self.class_names, counts, strict=True))

    def __repr__(self) -> str:
        nodes, of = len(self.graph.source_nodes), self.report.num_nodes
        parts = [f"{len(self)} samples", f"{nodes} nodes" if nodes == of else f"{nodes} of {of} nodes"]
        if self.unmeasured:
            parts.append(f"{len(self.unmeasured)} unmeasured")
        if self._codes is not None:
            parts.append(f"{self.num_classes} classes")
        if self.dropped:
            parts.append(f"{len(self.dropped)} dropped ({brief(self.dropped[0])}, …)")
        return f"{type(self).__name__}({', '.join(parts)})"


class AlignedGraphs(GraphDataset):
    """Samples of an :class:`AlignedDataset` as PyG graphs over units, for PyG layers and loaders.

    Each item is a :class:`~torch_geometric.data.Data` with ``x`` (n, 1), ``mask`` (n,) bool, ``edge_index``
    (2, nnz), ``y`` (1,) where there are labels, ``edge_sign`` (nnz,) int64 and ``edge_weight`` (nnz,) where
    the graph has them. All items share the tensors of the edges.
    """

    def __init__(self, samples: AlignedDataset) -> None:
        if samples.graph.is_bipartite:
            raise PriorGraphError(
                "Samples as graphs need one set of nodes. Got a bipartite graph: its targets have no values."
            )
        super().__init__()
        self.samples = samples
        shared = samples.graph.to_data(dtype=samples._dtype)
        self._edges = {"edge_index": shared.edge_index}
        if samples.graph.sign is not None:
            self._edges["edge_sign"] = shared.edge_sign
        if samples.graph.weight is not None:
            self._edges["edge_weight"] = shared.edge_weight

    def len(self) -> int:
        """Number of samples."""
        return len(self.samples)

    def get(self, idx: int) -> Data:
        """One sample as a graph."""
        return self._graphs([idx])[0]

    def __getitems__(self, indices: Iterable[int]) -> list[Data]:
        """Graphs of many samples, read at once."""
        every = self.indices()
        graphs = self._graphs([every[int(i)] for i in indices])
        return graphs if self.transform is None else [self.transform(graph) for graph in graphs]

    def _graphs(self, places: list[int]) -> list[Data]:
        x, y, mask = self.samples._read(self.samples._positions(places))
        graphs = []
        for row in range(len(places)):
            graph = Data(x=x[row, :, None], mask=mask[row], **self._edges)
            if y is not None:
                graph.y = y[row, None]
            graphs.append(graph)
        return graphs
