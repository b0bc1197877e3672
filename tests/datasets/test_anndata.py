"""from_anndata: cells by name, sparse until a batch is drawn."""

from __future__ import annotations

import pickle
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader
from torch_geometric.loader import DataLoader as GraphLoader

from pyg_kpnn import PriorTransformer
from pyg_kpnn.datasets import AlignedDataset, Sample, from_anndata
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, read_edgelist

anndata = pytest.importorskip("anndata")
sparse = pytest.importorskip("scipy.sparse")

NAN = float("nan")
NAMES = ["z", "b", "x", "a"]
VALUES = np.array(
    [[9, 1, 8, 2], [9, 3, 8, 0], [9, NAN, 8, 4], [9, 0, 8, NAN], [9, 5, 8, 6]], dtype=np.float32
)
#: By hand: columns b and a of the table, in the order a, b.
WANTED = np.array([[2, 1], [0, 3], [4, NAN], [NAN, 0], [6, 5]], dtype=np.float32)
TYPES = ["T", "B", "T", "NK", "B"]
FORMS = {
    "dense": np.array,
    "fortran": np.asfortranarray,
    "csr": sparse.csr_matrix,
    "csc": sparse.csc_matrix,
    "csr_array": sparse.csr_array,
    "double": lambda values: values.astype(np.float64),
}


@pytest.fixture
def graph() -> PriorGraph:
    return PriorGraph.from_edges([("b", "a"), ("a", "b")], sign=[1, -1], weight=[0.5, 2.0])


def table(values=VALUES, names=NAMES, types=TYPES, cells=None):
    cells = [f"cell{i}" for i in range(values.shape[0])] if cells is None else cells
    obs = pd.DataFrame({"cell_type": types, "batch": "one"}, index=cells)
    return anndata.AnnData(values.copy(), obs=obs, var=pd.DataFrame(index=names))


def same(x, wanted):
    np.testing.assert_array_equal(np.asarray(x), wanted)


@pytest.mark.parametrize("form", FORMS)
def test_values_mask_and_labels(graph, form):
    data = from_anndata(table(FORMS[form](VALUES)), graph)
    x, y, mask = data.tensors()
    assert (x.dtype, y.dtype, mask.dtype) == (torch.float32, torch.int64, torch.bool)
    same(x, WANTED)
    same(mask, np.isnan(WANTED))
    assert data.class_names == ("B", "NK", "T")
    assert y.tolist() == data.labels.tolist() == [2, 0, 2, 1, 0]
    assert data.class_counts() == {"B": 2, "NK": 1, "T": 2}
    assert data.sample_names == ("cell0", "cell1", "cell2", "cell3", "cell4")
    assert data.report.extra == ("z", "x")
    assert (data.unmeasured, data.dropped, len(data), data.num_classes) == ((), (), 5, 3)


@pytest.mark.parametrize("form", FORMS)
def test_items_slices_and_loaders(graph, form):
    data = from_anndata(table(FORMS[form](VALUES)), graph)
    item = data[-4]
    assert isinstance(item, Sample)
    same(item.x, WANTED[1])
    assert item.y.shape == ()
    same(data[1:4].tensors()[0], WANTED[1:4])
    same(data[[4, 0, 0]].tensors()[0], WANTED[[4, 0, 0]])
    same(data[torch.tensor([3, 1])][0].x, WANTED[3])
    chosen = data[data.labels == 0]
    assert (chosen.sample_names, chosen.labels.tolist()) == (("cell1", "cell4"), [0, 0])
    assert len(data[[]]) == 0
    for loader in (DataLoader, GraphLoader):
        x, y, mask = zip(*loader(data, batch_size=2), strict=True)
        same(torch.cat(x), WANTED)
        same(torch.cat(mask), np.isnan(WANTED))
        assert torch.cat(y).tolist() == [2, 0, 2, 1, 0]
        assert [len(part) for part in x] == [2, 2, 1]
    same(pickle.loads(pickle.dumps(data)).tensors()[0], WANTED)


def test_a_batch_is_read_at_once(graph, monkeypatch):
    data = from_anndata(table(sparse.csr_matrix(VALUES)), graph)
    calls = []
    rows = data._store.rows
    monkeypatch.setattr(
        data._store, "rows", lambda places, kind: calls.append(len(places)) or rows(places, kind)
    )
    list(DataLoader(data, batch_size=3))
    assert calls == [3, 2]


@pytest.mark.parametrize("loader", [DataLoader, GraphLoader])
def test_workers(graph, loader):
    data = from_anndata(table(sparse.csr_matrix(VALUES)), graph)
    batches = list(loader(data, batch_size=2, num_workers=1))
    same(torch.cat([batch.x for batch in batches]), WANTED)


def test_graphs(graph):
    data = from_anndata(table(), graph)
    graphs = data.as_graphs()
    assert len(graphs) == 5
    same(graphs[2].x, WANTED[2][:, None])
    assert graphs[2].mask.tolist() == [False, True]
    # edges are (a, b), (b, a) in the order of names
    assert graphs[0].edge_index.tolist() == [[0, 1], [1, 0]]
    assert graphs[0].edge_sign.tolist() == [-1, 1]
    assert graphs[0].edge_weight.tolist() == [2.0, 0.5]
    batch = next(iter(GraphLoader(graphs[1:4], batch_size=3)))
    same(batch.x, WANTED[1:4].reshape(6, 1))
    assert batch.y.tolist() == [0, 2, 1]
    assert batch.edge_index.tolist() == [[0, 1, 2, 3, 4, 5], [1, 0, 3, 2, 5, 4]]
    graphs.transform = lambda graph: graph.update({"seen": True})
    assert all(graph.seen for graph in graphs.__getitems__([0, 1]))
    with pytest.raises(PriorGraphError, match="bipartite"):
        from_anndata(table(), PriorGraph.bipartite([("a", "set"), ("b", "set")])).as_graphs()


def test_the_model_takes_a_batch(graph):
    model = PriorTransformer(graph, embed_dim=4, num_heads=1, readout="class", num_classes=3)
    for x, y, mask in DataLoader(from_anndata(table(), graph), batch_size=5):
        loss = torch.nn.functional.cross_entropy(model(x, mask), y)
        loss.backward()
        assert torch.isfinite(loss)
        assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_without_labels_the_values_stand_alone(graph):
    data = from_anndata(table(), graph, obs_key=None)
    assert data.labels is None
    assert (data.class_names, data.class_counts()) == ((), {})
    same(next(iter(DataLoader(data, batch_size=5))), WANTED)
    assert data.tensors()[1] is None
    assert "y" not in data.as_graphs()[0]


def test_layers_raw_and_views(graph):
    cells = table()
    cells.layers["twice"] = sparse.csr_matrix(2 * VALUES)
    same(from_anndata(cells, graph, layer="twice").tensors()[0], 2 * WANTED)
    cells.raw = table(VALUES[:, ::-1] + 1, NAMES[::-1])
    same(from_anndata(cells, graph, raw=True).tensors()[0], WANTED + 1)
    same(from_anndata(cells[[3, 0]], graph).tensors()[0], WANTED[[3, 0]])
    # a copy: later changes do not come through
    data = from_anndata(cells, graph)
    cells.X[:] = 0
    same(data.tensors()[0], WANTED)


def test_widths_and_bipartite():
    wide = PriorGraph.from_edges([("a", "b")], widths={"b": 3})
    data = from_anndata(table(), wide)
    same(data.tensors()[0], WANTED[:, [0, 1, 1, 1]])
    genes = PriorGraph.bipartite([("b", "set"), ("a", "set")])
    same(from_anndata(table(), genes).tensors()[0], WANTED)


def test_unmeasured_nodes():
    graph = PriorGraph.from_edges([("a", "b"), ("A1", "b"), ("B", "a")])
    cells = table()
    with pytest.raises(PriorGraphError, match=r"nothing for 2 of 4 nodes: 'B' \(case: 'b'\)|'A1'"):
        from_anndata(cells, graph)
    data = from_anndata(cells, graph, missing="mask")
    assert data.graph is graph
    assert data.unmeasured == ("A1", "B")
    x, _, mask = data.tensors()
    assert graph.nodes == ("A1", "B", "a", "b")
    same(x[:, 2:], WANTED)
    assert mask[:, :2].all()
    assert x[:, :2].isnan().all()
    data = from_anndata(cells, graph, missing="restrict")
    assert (data.graph.nodes, data.unmeasured) == (("a", "b"), ())
    assert data.report.missing == ("A1", "B")
    same(data.tensors()[0], WANTED)
    assert from_anndata(cells, graph, missing="mask", max_loss=0.7).report.num_edges_lost == 2
    with pytest.raises(PriorGraphError, match=r"Got 2 of 3 \(66\.7%\)"):
        from_anndata(cells, graph, missing="mask", max_loss=0.5)


def test_isolated_nodes_can_go_too():
    graph = PriorGraph.from_edges([("a", "A1"), ("b", "x")])
    data = from_anndata(table(), graph, missing="restrict")
    assert data.graph.nodes == ("a", "b", "x")
    data = from_anndata(table(), graph, missing="restrict", isolated="drop")
    assert data.graph.nodes == ("b", "x")
    same(data.tensors()[0], np.stack([WANTED[:, 1], np.full(5, 8.0)], axis=1))


def test_labels_of_every_kind(graph):
    order = pd.Categorical(["lo", "hi", "lo", "lo", "hi"], ["lo", "none", "hi"], ordered=True)
    data = from_anndata(table(types=order), graph)
    assert data.class_names == ("lo", "none", "hi")  # their order, the empty one too
    assert data.labels.tolist() == [0, 2, 0, 0, 2]
    assert data.class_counts() == {"lo": 3, "none": 0, "hi": 2}
    data = from_anndata(table(types=[10, 9, 10, 2, 9]), graph)
    assert data.class_names == ("2", "9", "10")
    assert data.labels.tolist() == [2, 1, 2, 0, 1]
    data = from_anndata(table(types=[1.0, 0.0, 1.0, NAN, 0.0]), graph, missing_labels="drop")
    assert (data.class_names, data.labels.tolist()) == (("0", "1"), [1, 0, 1, 0])
    assert from_anndata(table(types=[True, False, True, True, False]), graph).class_names == ("False", "True")


def test_missing_labels(graph):
    cells = table(types=pd.Categorical(["T", None, "B", None, "T"]))
    with pytest.raises(PriorGraphError, match=r"none in .* for 2 of 5 samples: 'cell1', 'cell3'"):
        from_anndata(cells, graph)
    data = from_anndata(cells, graph, missing_labels="drop")
    assert data.dropped == ("cell1", "cell3")
    assert "2 dropped" in repr(data)
    same(data.tensors()[0], WANTED[[0, 2, 4]])
    assert data.labels.tolist() == [1, 0, 1]
    assert data.sample_names == ("cell0", "cell2", "cell4")


@pytest.mark.filterwarnings("ignore:(Variable|Observation) names are not unique:UserWarning:anndata")
@pytest.mark.parametrize(
    ("make", "more", "words"),
    [
        (lambda: table(names=["a", "b", "x", "a"]), {}, "'a' at column 0 and 'a' at column 3"),
        (
            lambda: table(cells=["c", "d", "c", "e", "f"]),
            {},
            "'c' at rows 0 and 2. Call adata.obs_names_make",
        ),
        (table, {"obs_key": "Cell_type"}, "differs only in case from 'cell_type'"),
        (table, {"obs_key": 3}, "'obs_key' must name one column of obs. Got 3"),
        (table, {"layer": "counts"}, "'layer' must be a layer of adata. Got 'counts'; there are none"),
        (table, {"layer": 3}, "Got 3"),
        (table, {"raw": True}, "raw=True needs adata.raw"),
        (table, {"raw": 1}, "'raw' must be True or False. Got 1"),
        (table, {"raw": True, "layer": "x"}, "exclude each other"),
        (table, {"missing": "drop"}, "'missing' must be 'error', 'mask' or 'restrict'"),
        (table, {"isolated": 1}, "'isolated' must be"),
        (table, {"missing_labels": "keep"}, "'missing_labels' must be 'error' or 'drop'"),
        (table, {"max_loss": 7}, "'max_loss' must be a share"),
        (table, {"dtype": torch.int64}, "'dtype' must be torch.float32 or torch.float64"),
        (lambda: table().T, {"obs_key": None}, "2 of them are names of rows: the table is turned"),
        (lambda: table(names=list("pqrs")), {"missing": "mask"}, "At least one node must be measured"),
        (lambda: table(names=list("pqrs")), {"missing": "restrict"}, "At least one node must be measured"),
        (lambda: table(types=[0.1, 1.5, 2, 3, 4]), {}, "must be classes. Got the measured value 0.1"),
        (
            lambda: table(types=[None] * 5),
            {"missing_labels": "drop"},
            "At least one sample must have a label",
        ),
        (lambda: table(types=pd.Categorical([1, 1, "1", 1, 1])), {}, "'1' twice"),
        (lambda: table(VALUES.astype(complex)), {}, "must hold real numbers. Got complex128"),
        (lambda: anndata.AnnData(obs=table().obs, var=table().var), {}, "Got None. Pass layer="),
        (lambda: "cells.h5ad", {}, r"must be an AnnData. Got str.*pyg_kpnn\[anndata\]"),
        (lambda: pd.DataFrame(), {}, "use from_frame"),
    ],
)
def test_refuses(graph, make, more, words):
    with pytest.raises(PriorGraphError, match=words):
        from_anndata(make(), graph, **more)


def test_refuses_what_is_no_graph():
    with pytest.raises(PriorGraphError, match="'graph' must be a PriorGraph"):
        from_anndata(table(), [("a", "b")])


@pytest.mark.parametrize("index", ["a", 1.0, None, [[0]], [0.5], np.array([True])])
def test_refuses_other_positions(graph, index):
    with pytest.raises(PriorGraphError, match="chosen by position"):
        from_anndata(table(), graph)[index]


@pytest.mark.parametrize("index", [5, -6, [0, 5]])
def test_positions_outside(graph, index):
    with pytest.raises(IndexError):
        from_anndata(table(), graph)[index]


@pytest.mark.parametrize("form", ["dense", "csr", "double"])
def test_infinite_values_are_named(graph, form):
    values = VALUES.astype(np.float64)
    values[3, 1] = 1e300 if form == "double" else np.inf  # too large for float32
    data = from_anndata(table(FORMS[form](values)), graph)
    same(data[:3].tensors()[0], WANTED[:3])
    with pytest.raises(PriorGraphError, match="Got inf for sample 'cell3', node 'b'"):
        data[2:].tensors()


def test_double_precision_stays(graph):
    x = from_anndata(table(VALUES.astype(np.float64) + 1e-9), graph, dtype=torch.float64)[0].x
    assert x.dtype == torch.float64
    assert x[0].item() == 2 + 1e-9


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_backed_files_are_read_by_rows(graph, tmp_path, monkeypatch, form):
    path = tmp_path / "cells.h5ad"
    cells = table(FORMS[form](VALUES))
    cells.raw = table(sparse.csr_matrix(VALUES[:, ::-1] + 1), NAMES[::-1])
    cells.layers["twice"] = 2 * VALUES
    cells.write_h5ad(path)
    backed = anndata.read_h5ad(path, backed="r")
    data = from_anndata(backed, graph)
    same(data.tensors()[0], WANTED)
    same(data[[4, 0, 0, 3]].tensors()[0], WANTED[[4, 0, 0, 3]])  # neither ascending nor each once
    same(data[[0, 2, 4]].tensors()[0], WANTED[[0, 2, 4]])  # a row left out between two
    before = data._store._file
    with monkeypatch.context() as patch:  # an open file is of no use in another process
        patch.setattr("pyg_kpnn.datasets.stores.os.getpid", lambda: -1)
        same(data.tensors()[0], WANTED)
        assert data._store._file is not before
    same(from_anndata(backed, graph, layer="twice").tensors()[0], 2 * WANTED)
    same(from_anndata(backed, graph, raw=True).tensors()[0], WANTED + 1)
    same(pickle.loads(pickle.dumps(data)).tensors()[0], WANTED)
    batches = list(DataLoader(data, batch_size=2, num_workers=1))
    same(torch.cat([batch.x for batch in batches]), WANTED)
    with pytest.raises(PriorGraphError, match="Got a view of one"):
        from_anndata(backed[:2], graph)
    backed.file.close()


def test_backed_columns_are_refused(graph, tmp_path):
    table(sparse.csc_matrix(VALUES)).write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    with pytest.raises(PriorGraphError, match=r"in CSR form, to be read by rows\. Got 'csc_matrix'"):
        from_anndata(backed, graph)
    backed.file.close()


def test_a_large_sparse_table_is_never_dense():
    cells, genes = 100_000, 2_000
    rng = np.random.default_rng(0)
    per_cell = 20  # 1 %
    columns = rng.integers(0, genes, cells * per_cell, dtype=np.int32)
    starts = np.arange(0, cells * per_cell + 1, per_cell, dtype=np.int64)
    matrix = sparse.csr_matrix((np.ones(len(columns), np.float32), columns, starts), shape=(cells, genes))
    names = [f"g{i:04d}" for i in range(genes)]
    graph = PriorGraph.from_edges([(names[i], names[i - 1]) for i in range(genes)])
    obs = pd.DataFrame({"cell_type": ["a", "b"] * (cells // 2)}, index=[str(i) for i in range(cells)])
    adata = anndata.AnnData(matrix, obs=obs, var=pd.DataFrame(index=names))
    tracemalloc.start()
    try:
        data = from_anndata(adata, graph)
        x = next(iter(DataLoader(data, batch_size=512, shuffle=True))).x
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert x.shape == (512, genes)
    assert x.sum() == 512 * per_cell
    # dense it were 800 MB; the sparse matrix is 16 MB, and names of cells take more than that
    assert peak < 150e6


def test_real_cells(data_dir):
    graph = read_edgelist(data_dir / "human_tf/collectri.tsv", source="source", target="target")
    path = data_dir / "scanpy/10x_pbmc68k_reduced.h5ad"
    with warnings.catch_warnings():
        # the file is from 2018, and anndata says so once for every part of it
        warnings.filterwarnings("ignore", message=".*(written with|without encoding|Moving element)")
        adata = anndata.read_h5ad(path)
        backed = anndata.read_h5ad(path, backed="r")
    data = from_anndata(adata, graph, obs_key="bulk_labels", missing="restrict")
    assert isinstance(data, AlignedDataset)
    assert (data.graph.num_nodes, data.graph.num_edges) == (371, 218)
    assert data.class_names == tuple(adata.obs["bulk_labels"].cat.categories)
    x, y, mask = data.tensors()
    same(x, adata[:, list(data.graph.nodes)].X)
    assert not mask.any()
    assert [data.class_names[i] for i in y.tolist()] == adata.obs["bulk_labels"].tolist()
    lazy = from_anndata(backed, graph, obs_key="bulk_labels", missing="restrict")
    same(lazy[::7].tensors()[0], x[::7])
    raw = from_anndata(backed, graph, obs_key="bulk_labels", missing="restrict", raw=True)
    same(raw[:9].tensors()[0], adata.raw[:9, list(raw.graph.nodes)].X.toarray())
    backed.file.close()
