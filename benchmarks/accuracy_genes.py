"""Tables of genes with their prior graph: what the regulatory tasks of accuracy.py are run on."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from accuracy_jobs import MADE_UP, Folders
from torch import Tensor

from pyg_kpnn import PriorGraph, read_edgelist
from pyg_kpnn.datasets import AlignedDataset, BeelineCurated, Dream4, collectri, from_anndata, from_frame

HIDDEN_TEST, TEST_SHARE = 20_261_130, 0.2  # one seed and one test part for every fit
VALIDATION_SHARE = 0.2


class Genes(NamedTuple):
    """Samples over a prior.

    ``x`` (N, n) float32, ``labels`` (N,) int64, ``perturbed`` (N,) int64: the gene that was knocked out
    or down in a sample, -1 for none; ``in_series`` (N,) bool: whether a sample is one of a time series.
    """

    graph: PriorGraph
    x: Tensor
    labels: Tensor
    classes: int
    perturbed: Tensor
    in_series: Tensor


class Split(NamedTuple):
    """Places of samples."""

    train: Tensor
    validation: Tensor
    test: Tensor


def _genes(graph: PriorGraph, x: Tensor, labels: Tensor) -> Genes:
    none = torch.full((len(x),), -1)
    return Genes(graph, x.float(), labels, int(labels.max()) + 1, none, none >= 0)


def _aligned(samples: AlignedDataset) -> Genes:
    assert samples.labels is not None
    return _genes(samples.graph, samples.tensors()[0], samples.labels)


def _beeline(name: str) -> Callable[[Path], Genes]:
    def read(folder: Path) -> Genes:
        cells = BeelineCurated(folder, name)
        return _genes(cells.graph, cells.expression, cells.labels)

    return read


def _dream4(size: int) -> Callable[[Path], Genes]:
    def read(folder: Path) -> Genes:
        samples = Dream4(folder, size, 1)
        genes = _genes(samples.graph, samples.expression, samples.labels)
        return genes._replace(perturbed=samples.perturbed, in_series=samples.series >= 0)

    return read


def _thp1(folder: Path) -> Genes:
    raw = folder / "raw" / "THP1"
    graph = read_edgelist(raw / "refNetwork.csv", source="Gene1", target="Gene2")
    cells = pd.read_csv(raw / "ExpressionData.csv", index_col=0)
    hours = pd.read_csv(raw / "PseudoTime.csv", index_col=0)["Time"]
    samples = from_frame(cells, graph, hours.set_axis(hours.index.map(str)), genes_in_rows=True)
    return _aligned(samples)


def _sergio(folder: Path) -> Genes:
    raw = folder / "raw" / "DS8"
    graph = read_edgelist(raw / "gt_GRN.csv", header=False)
    cells = pd.read_csv(raw / "simulated_noNoise_S_0.csv.gz", index_col=0)
    cells.index = cells.index.map(str)
    types = pd.Series(np.arange(cells.shape[1]) // 300, cells.columns)  # three types in blocks of 300
    samples = from_frame(cells, graph, types, genes_in_rows=True, missing="restrict")
    return _aligned(samples)


def _pbmc68k(folder: Path) -> Genes:
    import anndata

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)  # the file is of an old version
        cells = anndata.read_h5ad(folder / "raw" / "10x_pbmc68k_reduced.h5ad")
    samples = from_anndata(
        cells, collectri(folder), obs_key="bulk_labels", missing="restrict", isolated="drop"
    )
    return _aligned(samples)


READERS: dict[str, tuple[Callable[[Path], Genes], tuple[str, ...]]] = {
    "GSD": (_beeline("GSD"), ("beeline/GSD",)),
    "HSC": (_beeline("HSC"), ("beeline/HSC",)),
    "mCAD": (_beeline("mCAD"), ("beeline/mCAD",)),
    "THP1": (_thp1, ("beeline/THP1",)),
    "SERGIO": (_sergio, ("sergio/DS8",)),
    "pbmc68k": (_pbmc68k, ("scanpy/10x_pbmc68k_reduced.h5ad", "human_tf/collectri.tsv")),
    "DREAM4 10": (_dream4(10), ("dream4/size10_1",)),
    "DREAM4 100": (_dream4(100), ("dream4/size100_1",)),
}


def prepare(dataset: str, folders: Folders) -> str | None:
    """Copy the raw files to ``raw`` in a folder of the dataset, beside which others may be written."""
    if dataset == MADE_UP:
        return None
    for place in READERS[dataset][1]:
        if folders.data is None or not (source := folders.data / place).exists():
            return f"there is no {place}; name its folder with --data"
        target = _folder(dataset, folders) / "raw" / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    load(dataset, folders)
    return None


def _folder(dataset: str, folders: Folders) -> Path:
    return folders.work / "genes" / dataset.replace(" ", "_")


@lru_cache(maxsize=2)
def load(dataset: str, folders: Folders) -> Genes:
    return made_up() if dataset == MADE_UP else READERS[dataset][0](_folder(dataset, folders))


def made_up(samples: int = 240) -> Genes:
    """A chain with side branches; each gene is its regulators' tanh and noise. Three groups start apart."""
    random = torch.Generator().manual_seed(0)
    graph = PriorGraph.from_edges(
        [("a", "b"), ("b", "c"), ("c", "d"), ("a", "e"), ("e", "f"), ("g", "h"), ("d", "h")]
    )
    at = {name: place for place, name in enumerate(graph.nodes)}
    labels = torch.arange(samples) % 3
    x = torch.randn(samples, len(at), generator=random)
    x[:, at["a"]] += 1.5 * (labels - 1)
    for target in "bcdefh":
        sources = [source for source, other in graph.edges if other == target]
        total = sum(x[:, at[source]] for source in sources)
        x[:, at[target]] = 1.5 * torch.tanh(torch.as_tensor(total)) + 0.4 * x[:, at[target]]
    return _genes(graph, x, labels)


def split(genes: Genes, seed: int) -> Split:
    """The test part is the same for every seed; the others are drawn anew. Each has its share of a class."""
    fixed, drawn = np.random.default_rng(HIDDEN_TEST), np.random.default_rng(seed)
    parts: list[list[np.ndarray]] = [[], [], []]
    for label in range(genes.classes):
        members = fixed.permutation(np.flatnonzero(genes.labels.numpy() == label))
        test, rest = np.split(members, [round(TEST_SHARE * len(members))])
        rest = drawn.permutation(rest)
        validation, train = np.split(rest, [round(VALIDATION_SHARE * len(rest))])
        for part, places in zip(parts, (train, validation, test), strict=True):
            part.append(places)
    return Split(*(torch.from_numpy(np.sort(np.concatenate(part))) for part in parts))


def standardised(x: Tensor, train: Tensor) -> Tensor:
    """Every gene with mean 0 and deviation 1 over the training part; one that does not vary is 0."""
    mean, deviation = x[train].mean(0), x[train].std(0)
    return torch.where(deviation > 1e-6, (x - mean) / deviation.clamp(min=1e-6), 0.0)
