"""Your own tables as samples over a prior graph, and curated, signed gene networks of the literature.

The networks are published; **the cells simulated from them** are not measured.
"""

from __future__ import annotations

from pyg_kpnn.datasets.aligned import AlignedDataset, AlignedGraphs, Sample
from pyg_kpnn.datasets.anndata import from_anndata
from pyg_kpnn.datasets.curated import CuratedGRN, curated_graph, curated_names
from pyg_kpnn.datasets.frame import from_frame
from pyg_kpnn.datasets.measurements import read_measurements

__all__ = [
    "AlignedDataset",
    "AlignedGraphs",
    "CuratedGRN",
    "Sample",
    "curated_graph",
    "curated_names",
    "from_anndata",
    "from_frame",
    "read_measurements",
]
