"""The curated models of BEELINE, with the cells it simulated from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_kpnn.datasets.matrices import read_matrix
from pyg_kpnn.datasets.raw import Source, fetch_member, folder_of
from pyg_kpnn.datasets.samples import NamedSamples, Samples
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, read_edgelist
from pyg_kpnn.prior.names import check_choice

__all__ = ["BeelineCurated"]

_NAMES = ("GSD", "HSC", "mCAD", "VSC")
_ARCHIVE = Source(
    "https://zenodo.org/records/3701939/files/BEELINE-data.zip?download=1",
    max_bytes=400_000_000,
    checksum="md5:52581e7e27aa699310384238daac4751",  # the only one that Zenodo states
)
_MEMBER_BYTES = 64_000_000


class BeelineCurated(NamedSamples):
    """Cells that BEELINE simulated from a curated gene network, with the network as prior.

    **The cells are simulated, not measured**, by BoolODE, 2,000 a network and without dropouts (the first of
    ten sets of each network). The lineages were found by Slingshot in these very cells, so the labels follow
    from the values; they are no independent truth.

    Parameters
    ----------
    root : str or path
        Folder of the files: ``root/raw/<name>/refNetwork.csv``, ``ExpressionData.csv`` and
        ``PseudoTime.csv`` are used where they are there. Else ``BEELINE-data.zip`` (262 MB, all networks) is
        downloaded to ``root/raw`` and stays there for the other names.
    name : str
        ``"GSD"`` (default): gonadal sex determination, 19 genes, 79 edges; ``"HSC"``: hematopoietic stem
        cells, 11 and 30; ``"mCAD"``: cortical area development, 5 and 14; ``"VSC"``: ventral spinal cord, 8
        genes.
    transform, pre_transform, pre_filter, force_reload
        As in :class:`CuratedGRN`; ``force_reload`` reads the raw files again, and downloads nothing.

    Attributes
    ----------
    graph : PriorGraph
        The signed network; of repeated rows the first is kept, self-loops stay.
    class_names : tuple of str
        The lineages, ``"PseudoTime1"`` and so on, and last ``"several"``: cells of more than one lineage, as
        before they part.

    Raises
    ------
    PriorGraphError
        Another name, files that could not be downloaded, or are not what they should be.

    Notes
    -----
    Each item is a :class:`~torch_geometric.data.Data` with ``x`` (n, 1) float32, ``y`` (1,) int64,
    ``edge_index`` (2, E), ``edge_sign`` (E,) float32 and ``pseudotime`` (1, L) float32, NaN where the cell is
    not in that lineage. :attr:`expression`, :attr:`labels`, :attr:`pseudotime` and :meth:`to_frame` show the
    same as one table.

    Licence: Creative Commons Attribution 4.0 (Zenodo record 3701939).

    Cite: Pratapa, Jalihal, Law, Bharadwaj and Murali, Benchmarking algorithms for gene regulatory network
    inference from single-cell transcriptomic data, Nature Methods 17, 147-154 (2020).

    Examples
    --------
    >>> cells = BeelineCurated("data/beeline", name="HSC")  # doctest: +SKIP
    >>> cells.graph.num_edges, cells[0].pseudotime.shape  # doctest: +SKIP
    (30, torch.Size([1, 4]))
    """

    _kind: ClassVar[str] = "cell"
    _further: ClassVar[tuple[str, ...]] = ("pseudotime",)

    def __init__(
        self,
        root: str | Path,
        name: str = "GSD",
        transform: Callable[[Data], Data] | None = None,
        pre_transform: Callable[[Data], Data] | None = None,
        pre_filter: Callable[[Data], bool] | None = None,
        force_reload: bool = False,
    ) -> None:
        check_choice(name, _NAMES, "name")
        self.name = name
        super().__init__(folder_of(root), transform, pre_transform, pre_filter, force_reload)

    @property
    def raw_dir(self) -> str:
        """The files of one network."""
        return str(Path(str(self.root)) / "raw" / self.name)

    @property
    def raw_file_names(self) -> list[str]:
        """Network, cells and lineages."""
        return ["refNetwork.csv", "ExpressionData.csv", "PseudoTime.csv"]

    @property
    def pseudotime(self) -> Tensor:
        """Time of each cell in each lineage, (N, L) float32, NaN where it is not in it."""
        return self._rows("pseudotime")

    def _choice(self) -> str:
        return self.name

    def _get(self, path: Path) -> None:
        tail = f"inputs/Curated/{self.name}/{self.name}-2000-1/{path.name}"
        fetch_member(_ARCHIVE, path.parents[1] / "BEELINE-data.zip", tail, path, _MEMBER_BYTES)

    def _read_graph(self) -> PriorGraph:
        return read_edgelist(
            self.raw_paths[0], source="Gene1", target="Gene2", sign="Type", on_duplicate="first"
        )

    def _read_samples(self) -> Samples:
        cells = read_matrix(Path(self.raw_paths[1]), ",")
        times = read_matrix(Path(self.raw_paths[2]), ",", missing=True)
        values = cells.take(self.graph.nodes, "ExpressionData.csv", axis=0).T
        pseudotime = torch.from_numpy(times.take(cells.columns, "PseudoTime.csv", axis=0)).float()
        member = ~pseudotime.isnan()
        count = member.sum(1)
        if not bool((count > 0).all()):
            lost = cells.columns[int((count == 0).nonzero()[0])]
            raise PriorGraphError(
                f"Every cell must be in a lineage. Got none for {lost!r} in PseudoTime.csv."
            )
        labels = torch.where(count == 1, member.long().argmax(1), len(times.columns))
        return Samples(
            list(cells.columns),
            torch.from_numpy(values).float(),
            labels,
            [*times.columns, "several"],
            {"pseudotime": pseudotime},
        )
