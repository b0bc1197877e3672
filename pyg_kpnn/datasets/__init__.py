"""Your own tables as samples over a prior graph, and networks of the literature with their data.

The networks are published; **the cells simulated from them** are not measured.
"""

from __future__ import annotations

from pyg_kpnn.datasets.aligned import AlignedDataset, AlignedGraphs, Sample
from pyg_kpnn.datasets.anndata import from_anndata
from pyg_kpnn.datasets.beeline import BeelineCurated
from pyg_kpnn.datasets.curated import CuratedGRN, curated_graph, curated_names
from pyg_kpnn.datasets.dream4 import Dream4
from pyg_kpnn.datasets.frame import from_frame
from pyg_kpnn.datasets.measurements import read_measurements
from pyg_kpnn.datasets.priors import collectri, dorothea, planetoid_graph, trrust
from pyg_kpnn.datasets.sachs import Sachs, sachs_graph

__all__ = [
    "AlignedDataset",
    "AlignedGraphs",
    "BeelineCurated",
    "CuratedGRN",
    "Dream4",
    "Sachs",
    "Sample",
    "collectri",
    "curated_graph",
    "curated_names",
    "dorothea",
    "from_anndata",
    "from_frame",
    "planetoid_graph",
    "read_measurements",
    "sachs_graph",
    "trrust",
]
