"""Protein signalling of single T cells by Sachs et al."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch
from torch_geometric.data import Data

from pyg_kpnn.datasets.matrices import read_matrix
from pyg_kpnn.datasets.raw import Source, fetch, folder_of
from pyg_kpnn.datasets.samples import NamedSamples, Samples
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph
from pyg_kpnn.prior.names import show
from pyg_kpnn.prior.text import WHITESPACE

__all__ = ["Sachs", "sachs_graph"]

# No checksum is published: the first download's is noted beside the file
_FILE = Source("https://www.bnlearn.com/book-crc/code/sachs.data.txt.gz", max_bytes=10_000_000)

_SHARED = (
    "PKC>PKA PKC>Raf PKA>Raf PKC>Mek PKA>Mek Raf>Mek Mek>Erk PKA>Erk Erk>Akt PKA>Akt PKC>P38 PKA>P38 PKC>Jnk "
    "PKA>Jnk Plcg>PIP2 PIP3>PIP2"
)
_EDGES = {
    17: f"{_SHARED} Plcg>PIP3",
    20: f"{_SHARED} PIP3>Plcg PIP3>Akt Plcg>PKC PIP2>PKC",
}
# headings of the tables of the paper, and the names used here
_OLD = {
    "praf": "Raf",
    "pmek": "Mek",
    "plcg": "Plcg",
    "p44/42": "Erk",
    "pakts473": "Akt",
    "pjnk": "Jnk",
}


def sachs_graph(edges: int = 17) -> PriorGraph:
    """The signalling network the 11 proteins are believed to follow.

    Parameters
    ----------
    edges : int
        ``17`` (default): the network the paper inferred, acyclic, as bnlearn lists it. ``20``: the consensus
        of the literature it compares with; it has three edges more that the paper missed (PIP3 to Akt, Plcg
        and PIP2 to PKC), and the one between PIP3 and Plcg the other way round. The others are the same 16.

    Returns
    -------
    PriorGraph
        11 nodes, no signs.

    Raises
    ------
    PriorGraphError
        For any other number.

    Examples
    --------
    >>> graph = sachs_graph()
    >>> graph.num_edges, graph.nodes[:4]
    (17, ('Akt', 'Erk', 'Jnk', 'Mek'))
    """
    if type(edges) is not int or edges not in _EDGES:
        raise PriorGraphError(f"'edges' must be 17 or 20. Got {show(edges)}.")
    return PriorGraph.from_edges([tuple(edge.split(">")) for edge in _EDGES[edges].split()])


class Sachs(NamedSamples):
    """Measured levels of 11 phosphorylated proteins and lipids in single human T cells.

    The cells of one condition, general stimulation by anti-CD3 and anti-CD28: 853 of them, without the
    interventions of the other conditions. ``y`` is always 0.

    Parameters
    ----------
    root : str or path
        Folder of the file: ``root/raw/sachs.data.txt.gz`` is used where it is there, else downloaded. No
        checksum of it is published, so the first download is trusted, and its SHA-256 noted beside it.
    edges : int
        17 or 20, see :func:`sachs_graph`. Default: 17.
    transform, pre_transform, pre_filter, force_reload
        As in :class:`CuratedGRN`.

    Attributes
    ----------
    graph : PriorGraph
        11 nodes.

    Raises
    ------
    PriorGraphError
        A file that could not be downloaded, or with other columns, or cells that are no finite numbers.

    Notes
    -----
    Each item has ``x`` (11, 1) float32, the raw fluorescence (take the logarithm), ``y`` (1,) int64 and
    ``edge_index`` (2, E).

    Licence: none is stated; the data were published with the paper, and bnlearn's authors distribute the
    file.

    Cite: Sachs, Perez, Pe'er, Lauffenburger and Nolan, Causal protein-signaling networks derived from
    multiparameter single-cell data, Science 308, 523-529 (2005).

    Examples
    --------
    >>> cells = Sachs("data/sachs")  # doctest: +SKIP
    >>> cells.expression.shape  # doctest: +SKIP
    torch.Size([853, 11])
    """

    _kind: ClassVar[str] = "cell"

    def __init__(
        self,
        root: str | Path,
        edges: int = 17,
        transform: Callable[[Data], Data] | None = None,
        pre_transform: Callable[[Data], Data] | None = None,
        pre_filter: Callable[[Data], bool] | None = None,
        force_reload: bool = False,
    ) -> None:
        self.graph = sachs_graph(edges)
        self.edges = edges
        super().__init__(folder_of(root), transform, pre_transform, pre_filter, force_reload)

    @property
    def raw_file_names(self) -> list[str]:
        """One table."""
        return ["sachs.data.txt.gz"]

    def _choice(self) -> str:
        return f"{self.edges}edges"

    def _get(self, path: Path) -> None:
        fetch(_FILE, path)

    def _read_samples(self) -> Samples:
        table = read_matrix(Path(self.raw_paths[0]), WHITESPACE)
        table = table._replace(columns=tuple(_OLD.get(name, name) for name in table.columns))
        values = torch.from_numpy(table.take(self.graph.nodes, "sachs.data.txt.gz")).float()
        names = list(table.rows) or [f"cell_{i}" for i in range(len(values))]
        return Samples(names, values, torch.zeros(len(values), dtype=torch.int64), ["anti-CD3/CD28"], {})
