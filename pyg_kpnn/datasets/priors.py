"""Published networks of human transcription factors, and PyG's own graphs with names, as prior graphs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pyg_kpnn.datasets.raw import Source, fetch, folder_of
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, read_edgelist
from pyg_kpnn.prior.names import listing, show
from pyg_kpnn.prior.text import Dialect, read_records

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["collectri", "dorothea", "planetoid_graph", "trrust"]


class _Form(NamedTuple):
    """A raw file a prior may come in, and the options that read it."""

    name: str
    options: dict[str, Any]


# Several sources of one pair are one edge; where they say + and -, its sign is not known.
_MERGED: dict[str, Any] = {"on_duplicate": "first", "on_conflict": "unknown"}

# The first form is the one that is downloaded, the others are taken where they are there.
_COLLECTRI = (
    _Form("CollecTRI_regulons.csv", {"sign": "weight"}),
    _Form("collectri.tsv", {"sign": "interaction"}),
)
_COLLECTRI_SOURCE = Source(
    "https://zenodo.org/records/8192729/files/CollecTRI_regulons.csv?download=1",
    max_bytes=10_000_000,
    checksum="sha256:4473c9189dd53dacc80297709ad1452dda1086a1cc2185f9a56146c261668701",
)
_TRRUST = (
    _Form("trrust_rawdata.human.tsv", {"header": False, "sign": 2}),
    _Form("trrust_via_dorothea.csv", {"source": "tf", "sign": "mor"}),
)
# The next two are made anew by their servers: the first download's checksum is noted beside the file.
_TRRUST_SOURCE = Source("https://www.grnpedia.org/trrust/data/trrust_rawdata.human.tsv", max_bytes=10_000_000)
_DOROTHEA_SOURCE = Source(
    "https://omnipathdb.org/interactions?datasets=dorothea&dorothea_levels=A,B,C,D&genesymbols=yes"
    "&organisms=9606&fields=dorothea_level&format=tsv",
    max_bytes=200_000_000,
)
_LEVELS = "ABCD"
_WANTED = ("source_genesymbol", "target_genesymbol", "is_stimulation", "is_inhibition", "dorothea_level")
_TRUE, _FALSE = ("1", "true"), ("0", "false", "")


def _raw(root: Any, forms: tuple[_Form, ...], source: Source) -> Path:
    """The raw file of a prior that is there, else the first form, downloaded."""
    places = [Path(folder_of(root), "raw", form.name) for form in forms]
    return fetch(source, next((path for path in places if path.exists()), places[0]))


def _read(root: Any, forms: tuple[_Form, ...], source: Source) -> PriorGraph:
    path = _raw(root, forms, source)
    options = next(form.options for form in forms if form.name == path.name)
    return read_edgelist(path, **_MERGED, **options)


def collectri(root: str | os.PathLike[str]) -> PriorGraph:
    """CollecTRI: signed human transcription factors and their targets, from twelve resources.

    Parameters
    ----------
    root : str or path
        Folder of the file: ``root/raw/CollecTRI_regulons.csv`` is used where it is there (or
        ``collectri.tsv`` with columns ``source``, ``interaction``, ``target``), else downloaded, 4 MB, and
        held against its checksum.

    Returns
    -------
    PriorGraph
        Edges factor to target with their sign. Complexes such as ``NFKB`` are nodes of their own.

    Raises
    ------
    PriorGraphError
        A file that could not be downloaded or is no such table.

    Notes
    -----
    Licence: Creative Commons Attribution 4.0 (Zenodo record 8192729); the resources behind it have their own.

    Cite: Müller-Dott et al., Expanding the coverage of regulons from high-confidence prior knowledge for
    accurate estimation of transcription factor activities, Nucleic Acids Research 51, 10934-10949 (2023).

    Examples
    --------
    >>> graph = collectri("data/collectri")  # doctest: +SKIP
    """
    return _read(root, _COLLECTRI, _COLLECTRI_SOURCE)


def trrust(root: str | os.PathLike[str]) -> PriorGraph:
    """TRRUST version 2: human transcription factors and their targets, from sentences of abstracts.

    Parameters
    ----------
    root : str or path
        Folder of the file: ``root/raw/trrust_rawdata.human.tsv`` is used where it is there (or
        ``trrust_via_dorothea.csv`` with columns ``tf``, ``target``, ``mor``), else downloaded. No checksum of
        it is published, so the first download is trusted, and its SHA-256 noted beside it.

    Returns
    -------
    PriorGraph
        Edges factor to target. Many have no known sign (0); a pair that activates by one article and
        represses by another has none either.

    Raises
    ------
    PriorGraphError
        A file that could not be downloaded or is no such table.

    Notes
    -----
    Licence: Creative Commons Attribution-ShareAlike 4.0.

    Cite: Han et al., TRRUST v2: an expanded reference database of human and mouse transcriptional regulatory
    interactions, Nucleic Acids Research 46, D380-D386 (2018).

    Examples
    --------
    >>> graph = trrust("data/trrust")  # doctest: +SKIP
    """
    return _read(root, _TRRUST, _TRRUST_SOURCE)


def dorothea(root: str | os.PathLike[str], levels: str = "ABC") -> PriorGraph:
    """DoRothEA: human transcription factors and their targets by confidence, as OmniPath serves it.

    Parameters
    ----------
    root : str or path
        Folder of the file: ``root/raw/dorothea.tsv`` is used where it is there, else downloaded with all
        levels. OmniPath makes it anew now and then, so the first download is trusted, and its SHA-256 noted
        beside it.
    levels : str
        Which levels of confidence, A (curated) to D (predicted, or one experiment). An edge of several levels
        has the best of them. Default: ``"ABC"``.

    Returns
    -------
    PriorGraph
        Edges factor to target; the sign is 0 where the resources disagree or say nothing.

    Raises
    ------
    PriorGraphError
        Other levels, levels without an edge, a file that could not be downloaded or is no such table.

    Notes
    -----
    Licence: that of the resources behind it, some of them for academic use only; see OmniPath.

    Cite: Garcia-Alonso, Holland, Ibrahim, Türei and Saez-Rodriguez, Benchmark and integration of resources
    for the estimation of human transcription factor activities, Genome Research 29, 1363-1375 (2019); Türei
    et al., Integrated intra- and intercellular signaling knowledge for multicellular omics analysis,
    Molecular Systems Biology 17, e9923 (2021).

    Examples
    --------
    >>> graph = dorothea("data/dorothea", levels="AB")  # doctest: +SKIP
    """
    if not isinstance(levels, str) or not levels or not set(levels) <= set(_LEVELS):
        raise PriorGraphError(f"'levels' must be letters of {_LEVELS!r}. Got {show(levels)}.")
    path = _raw(root, (_Form("dorothea.tsv", {}),), _DOROTHEA_SOURCE)
    edges, signs = [], []
    with path.open("rb") as stream:
        records = read_records(stream, path.name, Dialect("\t"))
        _, header = next(records, (0, []))
        lacking = [name for name in _WANTED if name not in header]
        if lacking:
            raise PriorGraphError(
                f"{path.name} must have columns {', '.join(_WANTED)}. It lacks {listing(lacking)}."
            )
        places = [header.index(name) for name in _WANTED]
        for line, cells in records:
            if len(cells) != len(header):
                raise PriorGraphError(
                    f"Lines of {path.name} must have {len(header)} cells. Got {len(cells)} on line {line}."
                )
            source, target, up, down, level = (cells[place].strip() for place in places)
            if min(level.split(";")) not in set(levels):
                continue
            flags = [_flag(cell, path.name, line) for cell in (up, down)]
            edges.append((source, target))
            signs.append(flags[0] - flags[1])
    if not edges:
        raise PriorGraphError(f"{path.name} must hold edges of levels {levels!r}. Got none.")
    return PriorGraph.from_edges(edges, sign=signs, **_MERGED)


def _flag(cell: str, name: str, line: int) -> int:
    text = cell.casefold()
    if text not in (*_TRUE, *_FALSE):
        raise PriorGraphError(f"Signs in {name} must be 0 or 1. Got {show(cell)} on line {line}.")
    return int(text in _TRUE)


def planetoid_graph(data: Any) -> PriorGraph:
    """The graph of a PyG dataset of one graph, such as ``Planetoid``, as a prior graph.

    PyG's own loaders are used as they are; this only names the nodes.

    Parameters
    ----------
    data : Dataset or Data
        A dataset with one graph, or its ``Data``.

    Returns
    -------
    PriorGraph
        Nodes are named by their number, with zeros in front (``"0007"``), so that the order of ``nodes`` is
        that of the rows of ``data.x``, and row i is the node i. Repeated edges are one.

    Raises
    ------
    PriorGraphError
        Not one graph with an ``edge_index``.

    Examples
    --------
    >>> import torch
    >>> from torch_geometric.data import Data
    >>> planetoid_graph(Data(edge_index=torch.tensor([[10, 2], [2, 0]]), num_nodes=11)).edges
    (('02', '00'), ('10', '02'))
    """
    from torch_geometric.data import Data, Dataset

    if isinstance(data, Dataset):
        if len(data) != 1:
            raise PriorGraphError(
                f"A prior graph comes from a dataset of one graph. Got {len(data)} in {type(data).__name__}. "
                "Pass one of them."
            )
        data = data[0]
    if not isinstance(data, Data) or not isinstance(data.edge_index, torch.Tensor) or not data.num_nodes:
        raise PriorGraphError(
            "A prior graph comes from a PyG Data with edge_index and nodes, or a dataset of one. Got "
            f"{type(data).__name__}."
        )
    graph: Data = data
    width = len(str(graph.num_nodes - 1))
    names = [f"{node:0{width}d}" for node in range(graph.num_nodes)]
    # only the edges: what else an edge carries there is no sign and no weight of a prior
    plain = Data(edge_index=graph.edge_index.detach().cpu(), num_nodes=graph.num_nodes)
    return PriorGraph.from_data(plain, node_names=names, on_duplicate="first")
