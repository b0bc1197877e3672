"""PyG dataset of cells simulated from a curated gene network."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from pyg_kpnn.datasets.cache import describe_transform, read_cells, read_plain, write_plain
from pyg_kpnn.datasets.dynamics import simulate_boolean, simulate_hill
from pyg_kpnn.datasets.rules import Attractor
from pyg_kpnn.datasets.tables import curated_names, read_tables, table_path
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, read_edgelist

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CuratedGRN", "curated_graph", "curated_names"]

_SIMULATORS = {"hill": simulate_hill, "boolean": simulate_boolean}
_NOISE = {"hill": 0.05, "boolean": 0.0}
_REVISION = 1  # raise it when the simulation changes, so that no cache of an older one is read


def curated_graph(name: str) -> PriorGraph:
    """The signed prior graph of one curated network.

    Parameters
    ----------
    name : str
        ``"hsc"``, ``"gsd"``, ``"mcad"`` or ``"vsc"``; see :func:`curated_names` and the README beside
        the tables for what each is and whom to cite.

    Returns
    -------
    PriorGraph
        Edges regulator to target with sign +1 (activates) or -1 (represses).

    Raises
    ------
    PriorGraphError
        For any other name.

    Examples
    --------
    >>> graph = curated_graph("hsc")
    >>> len(graph.nodes), graph.edge_index.shape[1]
    (11, 30)
    """
    return read_edgelist(table_path(name, "edges.csv"), sign="sign")


class CuratedGRN(InMemoryDataset):
    """Simulated cells of a curated gene network, labelled with the attractor each reached.

    **The cells are simulated, not measured.** The network and its Boolean rules are published; every
    cell follows them from the published start (or a random state where none is published) and is read
    at one random time on its way; then its own trajectory goes on to rest, and the attractor it reaches is
    the label. Early cells are still undecided, so no classifier can be always right.

    Parameters
    ----------
    root : str or path, optional
        Folder to keep the processed cells in; each choice of the parameters below has its own subfolder
        of ``root/processed``. Default: None, nothing is written.
    name : str
        ``"hsc"`` (default): myeloid differentiation, Krumsiek et al. 2011, 11 genes, 4 named fates;
        ``"gsd"``: human gonadal sex determination, Ríos et al. 2015, 19 genes, 3 fates;
        ``"mcad"``: cortical area development, Giacomantonio and Goodhill 2010, 5 genes, 2 fates;
        ``"vsc"``: ventral spinal cord, Lovrics et al. 2014, 8 genes, 5 fates.
    num_cells : int
        Cells to simulate. Default: 2000.
    dynamics : str
        ``"hill"`` (default), continuous levels, see
        :func:`~pyg_kpnn.datasets.dynamics.simulate_hill`; or ``"boolean"``, asynchronous updates, see
        :func:`~pyg_kpnn.datasets.dynamics.simulate_boolean`.
    noise : float, optional
        Noise of the dynamics. Hill: strength of the multiplicative noise, default 0.05. Boolean:
        probability that one update goes wrong, default 0.
    measurement_noise : float
        Standard deviation of the Gaussian noise added to every reading, then clipped at zero, in levels
        (1 = fully on). Default: 0.2.
    dropout_rate : float
        Probability, 0 to below 1, that a reading is lost and reported as 0. Default: 0.
    seed : int
        Seed of the simulation; the same seed gives the same cells, bit for bit on one machine. Neither
        ``measurement_noise`` nor ``dropout_rate`` changes which cells are simulated or their labels. The
        global random state is neither read nor changed. Default: 0.
    transform, pre_transform, pre_filter, force_reload
        As in every PyG dataset. Without a ``root``, ``pre_transform`` and ``pre_filter`` apply each time.
        Files below ``root`` are read as plain data, never as pickles, so ``pre_transform`` has to return
        classes that ``torch.load(weights_only=True)`` knows.

    Attributes
    ----------
    graph : PriorGraph
        The signed network, ``n`` nodes and ``E`` edges.
    class_names : tuple of str
        Name of each class. Fates named in the literature come first, in a fixed order that no seed
        changes, also if no cell reached one; attractors without a name follow, named by the genes
        that are on in them.

    Raises
    ------
    PriorGraphError
        For an unknown name or dynamics, or a number outside its range.

    Notes
    -----
    Each item is a :class:`~torch_geometric.data.Data` with ``x`` (n, 1) float32 in the order of
    ``graph.nodes``, ``y`` (1,) int64, ``edge_index`` (2, E) int64 and ``edge_sign`` (E,) float32 in the
    order of ``graph``. :attr:`expression`, :attr:`labels` and :meth:`to_frame` show the same cells as
    one table, and follow slices such as ``dataset[:100]``.

    Examples
    --------
    >>> cells = CuratedGRN(name="hsc", num_cells=50)
    >>> cells
    CuratedGRN(hsc, 50 simulated cells, 11 genes, 30 edges, 4 classes, dynamics=hill, seed=0)
    >>> cells.class_names
    ('erythrocyte', 'megakaryocyte', 'monocyte', 'granulocyte')
    >>> cells.expression.shape, cells[0].x.shape
    (torch.Size([50, 11]), torch.Size([11, 1]))
    """

    def __init__(
        self,
        root: str | Path | None = None,
        name: str = "hsc",
        num_cells: int = 2000,
        dynamics: str = "hill",
        noise: float | None = None,
        measurement_noise: float = 0.2,
        dropout_rate: float = 0.0,
        seed: int = 0,
        transform: Callable[[Data], Data] | None = None,
        pre_transform: Callable[[Data], Data] | None = None,
        pre_filter: Callable[[Data], bool] | None = None,
        force_reload: bool = False,
    ) -> None:
        self.graph = curated_graph(name)
        self.name = name
        if not isinstance(dynamics, str) or dynamics not in _SIMULATORS:
            raise PriorGraphError(f"dynamics must be one of {', '.join(_SIMULATORS)}; got {dynamics!r}")
        self.dynamics = dynamics
        self.num_cells = _whole("num_cells", num_cells, 1)
        self.seed = _whole("seed", seed, 0)
        top = 1.0 if dynamics == "boolean" else math.inf
        self.noise = _number("noise", _NOISE[dynamics] if noise is None else noise, top)
        self.measurement_noise = _number("measurement_noise", measurement_noise, math.inf)
        self.dropout_rate = _number("dropout_rate", dropout_rate, 1.0, open_end=True)
        self._in_memory = root is None
        super().__init__(
            None if root is None else str(root),
            transform,
            pre_transform,
            pre_filter,
            log=False,
            force_reload=force_reload,
        )
        if self._in_memory:
            items, table = self._simulate()
            self.data, self.slices = self.collate(items)
        else:
            self.data, self.slices, table = read_cells(
                self.processed_paths[0], self.processed_paths[1], len(self.graph.nodes)
            )
        self._expression: Tensor = table["expression"]
        self._labels: Tensor = table["labels"]
        self.class_names: tuple[str, ...] = tuple(table["class_names"])

    @property
    def has_process(self) -> bool:
        """Whether PyG shall write processed files: only with a ``root``."""
        return not self._in_memory

    @property
    def raw_file_names(self) -> list[str]:
        """No raw files: the tables come with the package."""
        return []

    @property
    def processed_dir(self) -> str:
        """A folder for each choice of every parameter that changes the cells."""
        tables = read_tables(self.name)
        choice = [_REVISION, tables.digest_text, self.dynamics, self.num_cells]
        choice += [self.noise, self.measurement_noise, self.dropout_rate, self.seed]
        digest = hashlib.sha256(repr(choice).encode()).hexdigest()[:12]
        stem = f"{self.name}_{self.dynamics}_{self.num_cells}cells_seed{self.seed}_{digest}"
        return str(Path(str(self.root)) / "processed" / stem)

    @property
    def processed_file_names(self) -> list[str]:
        """The graphs, and the same cells as one table."""
        return ["data.pt", "table.pt"]

    def process(self) -> None:
        """Simulate the cells and write them below ``root``, when they are not there yet."""
        items, table = self._simulate()
        data, slices = self.collate(items)
        write_plain((data.to_dict(), slices, type(data)), self.processed_paths[0])
        write_plain(table, self.processed_paths[1])

    def _process(self) -> None:
        # What torch_geometric's own does, without its pickles: a root may come from somebody else.
        notes = {Path(self.processed_dir, f"{what}.pt"): what for what in ("pre_transform", "pre_filter")}
        for note, what in notes.items():
            mine = describe_transform(getattr(self, what))
            if not self.force_reload and note.exists() and read_plain(note) != mine:
                warnings.warn(
                    f"The cells in {self.processed_dir} were made with another {what}. Pass "
                    "force_reload=True to make them anew.",
                    stacklevel=3,
                )
        if self.force_reload or not all(Path(path).exists() for path in self.processed_paths):
            Path(self.processed_dir).mkdir(parents=True, exist_ok=True)
            self.process()
            for note, what in notes.items():
                write_plain(describe_transform(getattr(self, what)), note)

    @property
    def num_classes(self) -> int:
        """Number of classes, also counting named fates that no cell reached."""
        return len(self.class_names)

    @property
    def expression(self) -> Tensor:
        """Simulated readings, (cells, n) float32, columns in the order of ``graph.nodes``, never negative."""
        return self._expression[list(self.indices())]

    @property
    def labels(self) -> Tensor:
        """Class of each cell, (cells,) int64, an index into ``class_names``."""
        return self._labels[list(self.indices())]

    def to_frame(self, label: str | None = None) -> pd.DataFrame:
        """The simulated readings as a table, cells in rows, genes in columns.

        Parameters
        ----------
        label : str, optional
            Name of one more column, the last, with the class name of each cell. Default: none.

        Returns
        -------
        pandas.DataFrame
            Index ``cell_0``, ``cell_1``, ... by the number of the cell in the whole dataset.

        Raises
        ------
        PriorGraphError
            If ``label`` is the name of a gene.

        Examples
        --------
        >>> CuratedGRN(name="mcad", num_cells=3).to_frame(label="fate").columns.tolist()
        ['Coup', 'Emx2', 'Fgf8', 'Pax6', 'Sp8', 'fate']
        """
        import pandas as pd

        index = pd.Index([f"cell_{i}" for i in self.indices()], name="cell")
        frame = pd.DataFrame(self.expression.numpy(), index=index, columns=list(self.graph.nodes))
        if label is not None:
            if label in self.graph.nodes:
                raise PriorGraphError(f"label must not be the name of a gene, got {label!r}")
            frame[label] = [self.class_names[i] for i in self.labels.tolist()]
        return frame

    def class_counts(self) -> dict[str, int]:
        """Number of cells of each class, by name, zeros included.

        Examples
        --------
        >>> sum(CuratedGRN(name="mcad", num_cells=10).class_counts().values())
        10
        """
        counts = torch.bincount(self.labels, minlength=self.num_classes).tolist()
        return dict(zip(self.class_names, counts, strict=True))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name}, {len(self)} simulated cells, {len(self.graph.nodes)} genes, "
            f"{self.graph.edge_index.shape[1]} edges, {self.num_classes} classes, "
            f"dynamics={self.dynamics}, seed={self.seed})"
        )

    def _simulate(self) -> tuple[list[Data], dict[str, Any]]:
        """The cells as a list of graphs and as one table, pre_filter and pre_transform applied."""
        tables = read_tables(self.name)
        network = tables.network
        # two streams, so that how cells are read never changes which cells there are
        moves, reading = (np.random.default_rng(s) for s in np.random.SeedSequence(self.seed).spawn(2))
        if tables.start is None:
            start = moves.random((len(network.genes), self.num_cells)) < 0.5
        else:
            start = np.repeat(network.state(tables.start)[:, None], self.num_cells, axis=1)
        cells = _SIMULATORS[self.dynamics](network, start, self.noise, moves)
        level = cells.level + self.measurement_noise * reading.standard_normal(cells.level.shape)
        level = np.where(reading.random(level.shape) < self.dropout_rate, 0.0, np.maximum(level, 0.0))

        named = {tuple(sorted(on)): title for title, on in tables.attractors.items()}
        titles = [_title(attractor, network.genes, named) for attractor in cells.attractor]
        class_names = [*tables.attractors, *sorted(set(titles) - set(tables.attractors))]
        labels = torch.tensor([class_names.index(title) for title in titles])

        column = [network.genes.index(node) for node in self.graph.nodes]
        expression = torch.from_numpy(level[column].T.astype(np.float32))
        sign = torch.as_tensor(self.graph.sign, dtype=torch.float32)
        edge_index = self.graph.edge_index
        items, kept = [], []
        for i in range(self.num_cells):
            item = Data(x=expression[i, :, None], y=labels[i, None], edge_index=edge_index, edge_sign=sign)
            if self.pre_filter is None or self.pre_filter(item):
                # cells share edge_index and edge_sign, and a transform may write in place
                items.append(item if self.pre_transform is None else self.pre_transform(item.clone()))
                kept.append(i)
        if not kept:
            raise PriorGraphError(
                f"pre_filter must keep at least one cell, it dropped all {self.num_cells} of {self.name!r}"
            )
        table = {"expression": expression[kept], "labels": labels[kept], "class_names": class_names}
        return items, table


def _title(attractor: Attractor, genes: tuple[str, ...], named: dict[tuple[str, ...], str]) -> str:
    """Name of an attractor in the literature, or else the genes that stay on in it."""
    always = tuple(
        sorted(gene for gene, values in zip(genes, zip(*attractor, strict=True), strict=True) if all(values))
    )
    if len(attractor) == 1 and always in named:
        return named[always]
    title = "+".join(always) or "all off"
    return (
        title if len(attractor) == 1 else f"{len(attractor)} states, always on: {'+'.join(always) or 'none'}"
    )


def _whole(what: str, value: object, least: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise PriorGraphError(f"{what} must be a whole number of at least {least}; got {value!r}")
    return int(value)


def _number(what: str, value: object, top: float, open_end: bool = False) -> float:
    if (
        not isinstance(value, Real)
        or isinstance(value, bool)
        or not math.isfinite(value)
        or not (0 <= float(value) < top or (value == top and not open_end))
    ):
        bound = "finite" if math.isinf(top) else f"{'below' if open_end else 'at most'} {top:g}"
        raise PriorGraphError(f"{what} must be a number, at least 0 and {bound}; got {value!r}")
    return float(value)
