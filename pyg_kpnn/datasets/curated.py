"""PyG dataset of cells simulated from a curated gene network."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch_geometric.data import Data

from pyg_kpnn.datasets.dynamics import simulate_boolean, simulate_hill
from pyg_kpnn.datasets.rules import Attractor
from pyg_kpnn.datasets.samples import NamedSamples, Samples
from pyg_kpnn.datasets.tables import curated_names, read_tables, table_path
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, read_edgelist

__all__ = ["CuratedGRN", "curated_graph", "curated_names"]

_SIMULATORS = {"hill": simulate_hill, "boolean": simulate_boolean}
_NOISE = {"hill": 0.05, "boolean": 0.0}


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


class CuratedGRN(NamedSamples):
    """Simulated cells of a curated gene network, labelled with the attractor each reached.

    **The cells are simulated, not measured.** The network and its Boolean rules are published; every
    cell follows them from the published start (or a random state where none is published) and is read
    at one random time on its way; then its own trajectory goes on to rest, and the attractor it reaches is
    the label. Early cells are still undecided, so no classifier can be always right.

    Parameters
    ----------
    root : str or path, optional
        Folder to keep the processed cells in; each choice of the parameters below has its own subfolder
        of ``root/processed``. Default: None, nothing is written, and the filters apply each time.
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
        As in every PyG dataset; see :class:`~pyg_kpnn.datasets.samples.NamedSamples`.

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
    order of ``graph``. :attr:`expression`, :attr:`labels`, :meth:`class_counts` and :meth:`to_frame` show the
    same cells as one table, and follow slices such as ``dataset[:100]``. Cells are named ``cell_0``,
    ``cell_1`` and so on as they were simulated.

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

    _kind: ClassVar[str] = "cell"

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
        super().__init__(
            None if root is None else str(root), transform, pre_transform, pre_filter, force_reload
        )

    @property
    def raw_file_names(self) -> list[str]:
        """No raw files: the tables come with the package."""
        return []

    def _choice(self) -> str:
        return f"{self.name}_{self.dynamics}_{self.num_cells}cells_seed{self.seed}"

    def _contents(self) -> list[Any]:
        return [read_tables(self.name).digest_text, self.noise, self.measurement_noise, self.dropout_rate]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name}, {len(self)} simulated cells, {len(self.graph.nodes)} genes, "
            f"{self.graph.edge_index.shape[1]} edges, {self.num_classes} classes, "
            f"dynamics={self.dynamics}, seed={self.seed})"
        )

    def _read_samples(self) -> Samples:
        """Simulate the cells."""
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
        names = [f"cell_{i}" for i in range(self.num_cells)]
        return Samples(names, expression, labels, class_names, {})


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
