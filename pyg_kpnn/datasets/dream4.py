"""The in-silico networks of the fourth DREAM challenge, with the experiments simulated on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_kpnn.datasets.matrices import read_matrix
from pyg_kpnn.datasets.raw import Source, fetch_member, folder_of
from pyg_kpnn.datasets.samples import NamedSamples, Samples
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, read_edgelist
from pyg_kpnn.prior.names import check_choice, name_list, show

__all__ = ["Dream4"]

EXPERIMENTS = ("wildtype", "knockouts", "knockdowns", "multifactorial", "timeseries")
# The complete challenge as the authors of its simulator publish it. No checksum is published: the first
# download's is noted beside the file.
_ARCHIVE = Source(
    "https://gnw.sourceforge.net/resources/DREAM4%20in%20silico%20challenge.zip", max_bytes=400_000_000
)
_MEMBER_BYTES = 16_000_000
_PERTURBED = ("knockouts", "knockdowns")


class Dream4(NamedSamples):
    """One in-silico network of DREAM4: its gold standard, and expression under several experiments.

    **Simulated, not measured**, by GeneNetWeaver, from parts of the networks of yeast and E. coli.

    Parameters
    ----------
    root : str or path
        Folder of the files: those in ``root/raw/size<size>_<network>`` are used where they are there
        (``goldStandard.tsv`` and one named after each experiment, such as ``knockouts.tsv``). Else the
        archive of the challenge (77 MB) is downloaded to ``root/raw`` and stays there for the other
        networks. No checksum of it is published, so the first download is trusted, and its SHA-256 noted
        beside it.
    size : int
        Genes: 10 (default) or 100.
    network : int
        1 (default) to 5.
    experiments : str or sequence of str, optional
        Some of ``"wildtype"`` (1 sample), ``"knockouts"`` and ``"knockdowns"`` (one a gene),
        ``"multifactorial"`` (one a gene) and ``"timeseries"`` (21 times a series; 5 series of 10 genes, 10 of
        100). Default: all that share one gold standard, which are all of 10 genes, and all but
        ``"multifactorial"`` of 100.

        **The genes of the multifactorial experiment of 100 genes have other names.** It was a challenge of
        its own: the same network, with its genes shuffled. Against ``goldStandard.tsv`` its edges are noise,
        so it is read alone, with ``goldStandard_multifactorial.tsv`` in the same folder (elsewhere the file
        is called ``DREAM4_GoldStandard_InSilico_Size100_multifactorial_<network>.tsv``).
    transform, pre_transform, pre_filter, force_reload
        As in :class:`CuratedGRN`.

    Attributes
    ----------
    graph : PriorGraph
        The gold standard: every ordered pair is known to be an edge or not; no self-loops, no signs. Nodes
        are in order of their names as text: G1, G10, G2.
    class_names : tuple of str
        The experiments, in the order above.

    Raises
    ------
    PriorGraphError
        Another size, network or experiment, experiments with two gold standards, files that could not be
        downloaded, or are not what they should be.

    Notes
    -----
    Each item has ``x`` (n, 1) float32, ``y`` (1,) int64 the experiment, ``edge_index`` (2, E), ``perturbed``
    (1,) int64 the node knocked out or down or -1, ``series`` (1,) int64 the time series from 0 or -1, and
    ``time`` (1,) float32 or NaN. In the first half of a series a perturbation acts that the challenge does
    not tell. :attr:`expression`, :attr:`labels`, :attr:`perturbed`, :attr:`series`, :attr:`time` and
    :meth:`to_frame` show the same as one table.

    Licence: none is stated for the data; the simulator has the MIT licence.

    Cite: Marbach, Prill, Schaffter, Mattiussi, Floreano and Stolovitzky, Revealing strengths and weaknesses
    of methods for gene network inference, PNAS 107, 6286-6291 (2010); Schaffter, Marbach and Floreano,
    GeneNetWeaver, Bioinformatics 27, 2263-2270 (2011).

    Examples
    --------
    >>> samples = Dream4("data/dream4", size=10, network=1)  # doctest: +SKIP
    >>> samples.graph.num_edges, len(samples)  # doctest: +SKIP
    (15, 136)
    """

    _further: ClassVar[tuple[str, ...]] = ("perturbed", "series", "time")

    def __init__(
        self,
        root: str | Path,
        size: int = 10,
        network: int = 1,
        experiments: str | Iterable[str] | None = None,
        transform: Callable[[Data], Data] | None = None,
        pre_transform: Callable[[Data], Data] | None = None,
        pre_filter: Callable[[Data], bool] | None = None,
        force_reload: bool = False,
    ) -> None:
        for what, value, allowed in (("size", size, (10, 100)), ("network", network, (1, 2, 3, 4, 5))):
            if type(value) is not int or value not in allowed:
                raise PriorGraphError(
                    f"{what!r} must be one of {', '.join(map(str, allowed))}. Got {show(value)}."
                )
        self.size, self.network = size, network
        self.experiments = _experiments(experiments, size)
        super().__init__(folder_of(root), transform, pre_transform, pre_filter, force_reload)

    @property
    def raw_dir(self) -> str:
        """The files of one network."""
        return str(Path(str(self.root)) / "raw" / f"size{self.size}_{self.network}")

    @property
    def raw_file_names(self) -> list[str]:
        """Gold standard, and a table for each experiment."""
        gold = "goldStandard_multifactorial" if self._alone else "goldStandard"
        return [f"{name}.tsv" for name in (gold, *self.experiments)]

    @property
    def perturbed(self) -> Tensor:
        """Position of the node knocked out or down in each sample, (N,) int64, -1 for none."""
        return self._rows("perturbed")

    @property
    def series(self) -> Tensor:
        """Time series of each sample, (N,) int64, -1 for none."""
        return self._rows("series")

    @property
    def time(self) -> Tensor:
        """Time of each sample in its series, (N,) float32, NaN without one."""
        return self._rows("time")

    @property
    def _alone(self) -> bool:
        return self.size == 100 and "multifactorial" in self.experiments

    def _choice(self) -> str:
        chosen = "" if self.experiments == _experiments(None, self.size) else f"_{'_'.join(self.experiments)}"
        return f"size{self.size}_{self.network}{chosen}"

    def _get(self, path: Path) -> None:
        folder, stem = f"Size {self.size}", f"insilico_size{self.size}"
        if self._alone:
            folder += " multifactorial"
        if path.stem.startswith("goldStandard"):
            kind = "_multifactorial" if self._alone else ""
            tail = f"{folder}/DREAM4 gold standards/{stem}{kind}_{self.network}_goldstandard.tsv"
        else:
            stem += f"_{self.network}"
            part = "" if self._alone else f"{stem}/"
            tail = f"{folder}/DREAM4 training data/{part}{stem}_{path.name}"
        fetch_member(_ARCHIVE, path.parents[1] / "DREAM4_in_silico_challenge.zip", tail, path, _MEMBER_BYTES)

    def _read_graph(self) -> PriorGraph:
        path = Path(self.raw_paths[0])
        graph, report = read_edgelist(path, header=False, keep_nonzero=2, return_report=True)
        pairs = self.size * (self.size - 1)
        if (len(graph.nodes), report.rows_read) != (self.size, pairs):
            raise PriorGraphError(
                f"{path.name} must list all {pairs:,} ordered pairs of {self.size} genes. Got "
                f"{report.rows_read:,} pairs of {len(graph.nodes)} genes."
            )
        return graph

    def _read_samples(self) -> Samples:
        nodes = self.graph.nodes
        names: list[str] = []
        parts: dict[str, list[np.ndarray]] = {key: [] for key in ("x", "y", *self._further)}
        for label, experiment in enumerate(self.experiments):
            table = read_matrix(Path(self.raw_dir, f"{experiment}.tsv"), "\t")
            count = len(table.values)
            perturbed, series = np.full((2, count), -1)
            time = np.full(count, np.nan)
            if experiment == "timeseries":
                if table.columns[0] != "Time":
                    raise PriorGraphError(
                        f"The first column of timeseries.tsv must be 'Time'. Got {show(table.columns[0])}."
                    )
                time = table.values[:, 0]
                # blank lines part the series, as does a time that is not later than the one before
                series = np.cumsum(np.diff(time, prepend=np.inf) <= 0) - 1
                table = table._replace(columns=table.columns[1:], values=table.values[:, 1:])
            values = table.take(nodes, f"{experiment}.tsv")
            wanted = {"wildtype": 1, "timeseries": count}.get(experiment, self.size)
            if count != wanted:
                raise PriorGraphError(f"{experiment}.tsv must have {wanted} rows. Got {count}.")
            if experiment in _PERTURBED:  # row i perturbs the gene of column i
                perturbed = np.array([nodes.index(gene) for gene in table.columns])
            names += [_name(experiment, row, table.columns, series, time) for row in range(count)]
            every = (values, np.full(count, label), perturbed, series, time)
            for key, value in zip(parts, every, strict=True):
                parts[key].append(value)
        more = {key: torch.from_numpy(np.concatenate(part)) for key, part in parts.items()}
        more["time"] = more["time"].float()
        return Samples(names, more.pop("x").float(), more.pop("y"), list(self.experiments), more)


def _experiments(experiments: str | Iterable[str] | None, size: int) -> tuple[str, ...]:
    """The experiments to read, each once and in order, all with one gold standard."""
    if experiments is None:
        return tuple(each for each in EXPERIMENTS if size == 10 or each != "multifactorial")
    one = isinstance(experiments, str)
    chosen = [experiments] if one else name_list(experiments, "experiments", of="experiments")
    for each in chosen:
        check_choice(each, EXPERIMENTS, "experiments")
    if not chosen:
        raise PriorGraphError("'experiments' must name at least one experiment. Got none.")
    if size == 100 and "multifactorial" in chosen and len(set(chosen)) > 1:
        raise PriorGraphError(
            "Of 100 genes, 'multifactorial' must be read alone: there the genes have other names than in the "
            f"other experiments. Got {show(chosen)}. Make two datasets."
        )
    return tuple(each for each in EXPERIMENTS if each in chosen)


def _name(experiment: str, row: int, genes: tuple[str, ...], series: np.ndarray, time: np.ndarray) -> str:
    if experiment == "timeseries":
        return f"timeseries {series[row] + 1} at {time[row]:g}"
    return f"{experiment} {genes[row] if experiment in _PERTURBED else row + 1}"
