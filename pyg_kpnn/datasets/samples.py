"""Samples over a prior graph as a PyG dataset, kept as plain data below ``root``."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from pyg_kpnn.datasets.cache import describe_transform, read_cells, read_plain, write_plain
from pyg_kpnn.datasets.raw import digest
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph
from pyg_kpnn.prior.names import show

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NamedSamples", "Samples"]

_REVISION = 2  # raise it when any dataset is made in another way, so that nothing older is read


class Samples(NamedTuple):
    """What a dataset is made of, before any filter or transform.

    Attributes
    ----------
    names : list of str
        Names of the N samples.
    expression : Tensor
        (N, n) float32, columns in the order of ``graph.nodes``.
    labels : Tensor
        (N,) int64, positions in ``class_names``.
    class_names : list of str
        Name of every class.
    more : dict of str to Tensor
        Further values of each sample, N rows.
    """

    names: list[str]
    expression: Tensor
    labels: Tensor
    class_names: list[str]
    more: dict[str, Tensor]


class NamedSamples(InMemoryDataset):
    """Base of the datasets with a prior graph: a subclass says what they hold, and where it comes from.

    Each item is a :class:`~torch_geometric.data.Data` with ``x`` (n, 1) float32 in the order of
    ``graph.nodes``, ``y`` (1,) int64, ``edge_index`` (2, E) int64 and, of a signed graph, ``edge_sign`` (E,)
    float32 in the order of ``graph``.

    Parameters
    ----------
    root : str, optional
        Folder of the raw and the processed files. None: nothing is written.
    transform, pre_transform, pre_filter, force_reload
        As in every PyG dataset. ``force_reload`` makes the samples anew from the raw files, and downloads
        nothing. Files below ``root`` are read as plain data, never as pickles, so ``pre_transform`` has to
        return classes that ``torch.load(weights_only=True)`` knows.

    Attributes
    ----------
    class_names : tuple of str
        Name of each class.
    sample_names : tuple of str
        Name of each sample that is kept, slices not applied.

    Raises
    ------
    PriorGraphError
        Raw files that are not what they should be, damaged processed files, and a ``pre_filter`` that drops
        everything.
    """

    _kind: ClassVar[str] = "sample"
    #: Names of what a sample has besides values and class; a subclass shows each as a property.
    _further: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        root: str | None,
        transform: Callable[[Data], Data] | None,
        pre_transform: Callable[[Data], Data] | None,
        pre_filter: Callable[[Data], bool] | None,
        force_reload: bool,
    ) -> None:
        self._in_memory = root is None
        self._folder: str | None = None
        super().__init__(root, transform, pre_transform, pre_filter, log=False, force_reload=force_reload)
        if self._in_memory:
            items, table = self._made()
            self.data, self.slices = self.collate(items)
        else:
            data, cells = self.processed_paths
            self.data, self.slices, table = read_cells(data, cells, len(self.graph.nodes), self._further)
        self._table: dict[str, Any] = table
        self.class_names: tuple[str, ...] = tuple(table["class_names"])
        self.sample_names: tuple[str, ...] = tuple(table["names"])

    @cached_property
    def graph(self) -> PriorGraph:
        """The prior, ``n`` named nodes and ``E`` edges."""
        return self._read_graph()

    # --- what a subclass says --------------------------------------------------------------------

    def _choice(self) -> str:
        """The parameters in short, part of the name of a folder."""
        raise NotImplementedError

    def _contents(self) -> list[Any]:
        """Whatever else changes the samples."""
        return [digest(Path(path)) for path in self.raw_paths]

    def _get(self, path: Path) -> None:
        """Download one raw file."""
        raise NotImplementedError

    def _read_graph(self) -> PriorGraph:
        """The prior graph, where the raw files tell it; else a subclass sets ``graph`` when it begins."""
        raise NotImplementedError

    def _read_samples(self) -> Samples:
        """All samples, in the order of ``graph``."""
        raise NotImplementedError

    # --- what torch_geometric calls --------------------------------------------------------------

    @property
    def has_download(self) -> bool:
        """Whether there are raw files."""
        return bool(self.raw_file_names)

    @property
    def has_process(self) -> bool:
        """Whether there is a folder to keep the samples in."""
        return not self._in_memory

    @property
    def processed_dir(self) -> str:
        """A folder for each choice of parameters and each content of the raw files."""
        if self._folder is None:
            known = hashlib.sha256(repr([_REVISION, *self._contents()]).encode()).hexdigest()[:12]
            self._folder = str(Path(str(self.root)) / "processed" / f"{self._choice()}_{known}")
        return self._folder

    @property
    def processed_file_names(self) -> list[str]:
        """The graphs, and the same samples as one table."""
        return ["data.pt", "table.pt"]

    def download(self) -> None:
        """Get the raw files that are not there."""
        for path in map(Path, self.raw_paths):
            if not path.exists():
                self._get(path)

    def _process(self) -> None:
        # What torch_geometric's own does, without its pickles: a root may come from somebody else.
        notes = {Path(self.processed_dir, f"{what}.pt"): what for what in ("pre_transform", "pre_filter")}
        for note, what in notes.items():
            mine = describe_transform(getattr(self, what))
            if not self.force_reload and note.exists() and read_plain(note) != mine:
                warnings.warn(
                    f"The {self._kind}s in {self.processed_dir} were made with another {what}. Pass "
                    "force_reload=True to make them anew.",
                    stacklevel=3,
                )
        if self.force_reload or not all(Path(path).exists() for path in self.processed_paths):
            Path(self.processed_dir).mkdir(parents=True, exist_ok=True)
            self.process()
            for note, what in notes.items():
                write_plain(describe_transform(getattr(self, what)), note)

    def process(self) -> None:
        """Make the samples and write them below ``root``."""
        items, table = self._made()
        data, slices = self.collate(items)
        write_plain((data.to_dict(), slices, type(data)), self.processed_paths[0])
        write_plain(table, self.processed_paths[1])

    def _made(self) -> tuple[list[Data], dict[str, Any]]:
        """The samples as graphs and as one table, ``pre_filter`` and ``pre_transform`` applied."""
        samples = self._read_samples()
        edges = {"edge_index": self.graph.edge_index}
        if self.graph.sign is not None:
            edges["edge_sign"] = torch.as_tensor(self.graph.sign, dtype=torch.float32)
        items, kept = [], []
        for i in range(len(samples.names)):
            more = {key: samples.more[key][i, None] for key in self._further}
            item = Data(x=samples.expression[i, :, None], y=samples.labels[i, None], **edges, **more)
            if self.pre_filter is None or self.pre_filter(item):
                # samples share the tensors of the edges, and a transform may write in place
                items.append(item if self.pre_transform is None else self.pre_transform(item.clone()))
                kept.append(i)
        if not kept:
            raise PriorGraphError(
                f"'pre_filter' must keep at least one {self._kind}. It dropped all {len(samples.names)} of "
                f"{self._choice()}."
            )
        table = {
            "expression": samples.expression[kept],
            "labels": samples.labels[kept],
            "class_names": samples.class_names,
            "names": [samples.names[i] for i in kept],
            **{key: samples.more[key][kept] for key in self._further},
        }
        return items, table

    # --- the samples as one table ----------------------------------------------------------------

    @property
    def num_classes(self) -> int:
        """Number of classes, those without a sample too."""
        return len(self.class_names)

    @property
    def expression(self) -> Tensor:
        """Values, (N, n) float32, columns in the order of ``graph.nodes``."""
        return self._rows("expression")

    @property
    def labels(self) -> Tensor:
        """Class of each sample, (N,) int64, an index into ``class_names``."""
        return self._rows("labels")

    def _rows(self, key: str) -> Tensor:
        rows: Tensor = self._table[key]
        return rows[list(self.indices())]

    def to_frame(self, label: str | None = None) -> pd.DataFrame:
        """The samples as a table with names, samples in rows, nodes in columns.

        Parameters
        ----------
        label : str, optional
            Name of one more column, the last, with the class name of each sample. Default: none.

        Raises
        ------
        PriorGraphError
            If ``label`` is the name of a node.

        Examples
        --------
        >>> from pyg_kpnn.datasets import CuratedGRN
        >>> CuratedGRN(name="mcad", num_cells=3).to_frame(label="fate").columns.tolist()
        ['Coup', 'Emx2', 'Fgf8', 'Pax6', 'Sp8', 'fate']
        """
        import pandas as pd

        index = pd.Index([self.sample_names[i] for i in self.indices()], name=self._kind)
        frame = pd.DataFrame(self.expression.numpy(), index=index, columns=list(self.graph.nodes))
        if label is not None:
            if label in self.graph.nodes:
                raise PriorGraphError(f"'label' must not be the name of a node. Got {show(label)}.")
            frame[label] = [self.class_names[i] for i in self.labels.tolist()]
        return frame

    def class_counts(self) -> dict[str, int]:
        """Number of samples of each class, by name, zeros included.

        Examples
        --------
        >>> from pyg_kpnn.datasets import CuratedGRN
        >>> sum(CuratedGRN(name="mcad", num_cells=10).class_counts().values())
        10
        """
        counts = torch.bincount(self.labels, minlength=self.num_classes).tolist()
        return dict(zip(self.class_names, counts, strict=True))

    def __repr__(self) -> str:
        sizes = f"{len(self.graph.nodes)} nodes, {self.graph.num_edges} edges, {self.num_classes} classes"
        return f"{type(self).__name__}({self._choice()}, {len(self)} {self._kind}s, {sizes})"
