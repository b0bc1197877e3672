"""CuratedGRN: a PyG dataset and a table of the same simulated cells."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch
from torch_geometric.data import InMemoryDataset
from torch_geometric.loader import DataLoader

import pyg_kpnn
from pyg_kpnn.datasets import CuratedGRN, curated, curated_graph, curated_names
from pyg_kpnn.errors import PriorGraphError


@pytest.fixture(scope="module")
def hsc():
    return CuratedGRN(num_cells=211)


def majority(labels):
    return torch.bincount(labels).max().item() / len(labels)


def linear_accuracy(cells):
    """Held-out accuracy of multinomial logistic regression, every fourth cell held out."""
    held = torch.arange(len(cells)) % 4 == 0
    x = cells.expression.double()
    x = (x - x[~held].mean(0)) / (x[~held].std(0) + 1e-6)
    weight = torch.zeros(x.shape[1] + 1, cells.num_classes, dtype=torch.float64, requires_grad=True)
    x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    optimiser = torch.optim.LBFGS([weight], max_iter=100)

    def closure():
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy((x @ weight)[~held], cells.labels[~held])
        loss = loss + 1e-3 * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return ((x @ weight).argmax(1) == cells.labels)[held].double().mean().item()


def test_items_follow_pyg_and_the_graph(hsc):
    assert isinstance(hsc, InMemoryDataset)
    assert pyg_kpnn.datasets.CuratedGRN is CuratedGRN
    item = hsc[5]
    assert item.x.shape == (11, 1)
    assert item.x.dtype == torch.float32
    assert item.y.shape == (1,)
    assert item.y.dtype == torch.int64
    assert torch.equal(item.edge_index, hsc.graph.edge_index)
    assert item.edge_sign.tolist() == [float(s) for s in hsc.graph.sign.tolist()]
    assert item.validate()


def test_items_and_table_are_the_same_cells(hsc):
    assert hsc.expression.shape == (211, 11)
    assert hsc.expression.dtype == torch.float32
    assert torch.equal(torch.stack([item.x[:, 0] for item in hsc]), hsc.expression)
    assert torch.equal(torch.cat([item.y for item in hsc]), hsc.labels)
    frame = hsc.to_frame(label="fate")
    assert tuple(frame.columns) == (*hsc.graph.nodes, "fate")
    assert frame.index[3] == "cell_3"
    assert frame["fate"].tolist() == [hsc.class_names[i] for i in hsc.labels.tolist()]
    assert np.array_equal(hsc.to_frame().to_numpy(), hsc.expression.numpy())


def test_columns_carry_the_right_gene():
    # cells on the way to a fate hold more of its genes; Gata2, on at the start, stays longest in one branch
    cells = CuratedGRN(num_cells=400, measurement_noise=0.0, noise=0.0)
    frame = cells.to_frame(label="fate")
    mean = frame[frame["fate"] == "erythrocyte"].drop(columns="fate").mean()
    other = frame[frame["fate"] == "granulocyte"].drop(columns="fate").mean()
    assert set((mean - other).nlargest(5).index) == {"Eklf", "Fog1", "Gata1", "Gata2", "Scl"}
    assert set((other - mean).nlargest(3).index) == {"Cebpa", "Gfi1", "Pu1"}


def test_loader_batches(hsc):
    batch = next(iter(DataLoader(hsc, batch_size=7)))
    assert batch.x.shape == (77, 1)
    assert batch.edge_index.shape == (2, 210)
    assert batch.edge_sign.shape == (210,)
    assert torch.equal(batch.x.view(7, 11), hsc.expression[:7])


def test_slices_keep_table_and_items_together(hsc):
    part = hsc[torch.tensor([9, 2, 101])]
    assert len(part) == 3
    assert torch.equal(part.expression, hsc.expression[[9, 2, 101]])
    assert torch.equal(part.labels, hsc.labels[[9, 2, 101]])
    assert part.to_frame().index.tolist() == ["cell_9", "cell_2", "cell_101"]
    assert part.num_classes == 4
    assert hsc[:10][2:5].expression.shape == (3, 11)


def test_says_that_cells_are_simulated(hsc):
    assert repr(hsc) == (
        "CuratedGRN(hsc, 211 simulated cells, 11 genes, 30 edges, 4 classes, dynamics=hill, seed=0)"
    )
    assert "simulated, not measured" in CuratedGRN.__doc__


@pytest.mark.parametrize("dynamics", ["hill", "boolean"])
def test_same_seed_same_bits_another_seed_other_cells(dynamics):
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state()
    first, second, other = (
        CuratedGRN(name="gsd", num_cells=37, dynamics=dynamics, seed=s) for s in (3, 3, 4)
    )
    assert first.expression.numpy().tobytes() == second.expression.numpy().tobytes()
    assert torch.equal(first.labels, second.labels)
    assert not torch.equal(first.expression, other.expression)
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.random.get_rng_state(), states[2])


def test_reading_noise_and_dropout_change_readings_not_cells():
    clean = CuratedGRN(num_cells=300, measurement_noise=0.0)
    noisy = CuratedGRN(num_cells=300)
    lost = CuratedGRN(num_cells=300, dropout_rate=0.4)
    assert torch.equal(clean.labels, noisy.labels)
    assert torch.equal(clean.labels, lost.labels)
    assert 0.17 < (noisy.expression - clean.expression)[clean.expression > 0.9].std() < 0.23
    zero = lost.expression == 0
    assert torch.equal(lost.expression[~zero], noisy.expression[~zero])
    assert 0.35 < zero[noisy.expression > 0].double().mean() < 0.45
    assert (noisy.expression >= 0).all()


@pytest.mark.parametrize("name", curated_names())
@pytest.mark.parametrize("dynamics", ["hill", "boolean"])
def test_every_named_fate_is_reached_and_no_other(name, dynamics):
    cells = CuratedGRN(name=name, dynamics=dynamics)
    counts = cells.class_counts()
    assert sum(counts.values()) == 2000
    assert tuple(counts) == cells.class_names
    assert min(counts.values()) >= 30, counts
    assert majority(cells.labels) < 0.85
    assert cells.num_classes == {"hsc": 4, "gsd": 3, "mcad": 2, "vsc": 5}[name]


@pytest.mark.parametrize(("name", "margin"), [("hsc", 0.25), ("gsd", 0.12)])
def test_labels_can_be_learnt_but_not_perfectly(name, margin):
    cells = CuratedGRN(name=name)
    accuracy = linear_accuracy(cells)
    assert majority(cells.labels) + margin < accuracy < 0.95


def test_attractors_without_a_name_come_after_the_named_ones():
    cells = CuratedGRN(num_cells=500, dynamics="boolean", noise=0.3)
    assert cells.class_names[:4] == ("erythrocyte", "megakaryocyte", "monocyte", "granulocyte")
    assert set(cells.class_names[4:]) <= {"EgrNab+Pu1+cJun", "all off"}
    assert len(cells.class_names) > 4
    assert cells.labels.max() == cells.num_classes - 1


def test_root_keeps_a_cache_for_each_choice(tmp_path, monkeypatch):
    calls = []
    simulate = CuratedGRN._read_samples
    monkeypatch.setattr(CuratedGRN, "_read_samples", lambda self: calls.append(1) or simulate(self))
    base = {"name": "mcad", "num_cells": 13}
    first = CuratedGRN(tmp_path, **base)
    again = CuratedGRN(str(tmp_path), **base)
    assert len(calls) == 1
    assert torch.equal(first.expression, again.expression)
    assert torch.equal(first[4].x, again[4].x)
    assert again.class_names == first.class_names
    assert torch.equal(CuratedGRN(**base).expression, first.expression)
    changes = [
        {"seed": 1},
        {"num_cells": 14},
        {"noise": 0.06},
        {"measurement_noise": 0.3},
        {"dropout_rate": 0.1},
        {"dynamics": "boolean"},
        {"name": "vsc"},
    ]
    for number, change in enumerate(changes, start=3):
        CuratedGRN(tmp_path, **{**base, **change})
        assert len(calls) == number, change
    CuratedGRN(tmp_path, **base)
    assert len(calls) == 2 + len(changes)
    CuratedGRN(tmp_path, **base, force_reload=True)
    assert len(calls) == 3 + len(changes)


def test_a_changed_table_is_not_served_from_the_cache(tmp_path, monkeypatch):
    first = CuratedGRN(tmp_path, name="mcad", num_cells=3).processed_dir
    read = curated.read_tables
    monkeypatch.setattr(curated, "read_tables", lambda name: read(name)._replace(digest_text="other"))
    assert CuratedGRN(tmp_path, name="mcad", num_cells=3).processed_dir != first


def test_without_root_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    CuratedGRN(num_cells=5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rooted", [False, True])
def test_transforms_and_filters(rooted, tmp_path):
    def double(item):
        item.x = item.x * 2
        return item

    plain = CuratedGRN(num_cells=60)
    kept = [i for i, y in enumerate(plain.labels.tolist()) if y == 3]
    cells = CuratedGRN(
        tmp_path if rooted else None,
        num_cells=60,
        transform=double,
        pre_transform=double,
        pre_filter=lambda item: item.y.item() == 3,
    )
    assert len(cells) == len(kept)
    assert torch.equal(cells.expression, plain.expression[kept])
    assert cells.sample_names == tuple(f"cell_{i}" for i in kept)
    assert torch.equal(cells[1].x, plain[kept[1]].x * 4)
    with pytest.raises(PriorGraphError, match="dropped all 60"):
        CuratedGRN(num_cells=60, pre_filter=lambda item: False)


def test_cells_share_one_edge_index_that_no_transform_spoils(monkeypatch):
    built = []
    graph = type(curated_graph("hsc"))
    monkeypatch.setattr(
        graph, "edge_index", property(lambda self, get=graph.edge_index.fget: built.append(1) or get(self))
    )

    def flip(data):
        data.edge_sign.neg_()
        data.edge_index.copy_(data.edge_index.flip(0))
        return data

    cells = CuratedGRN(name="hsc", num_cells=12, pre_transform=flip)
    assert len(built) == 1
    for cell in cells:
        assert torch.equal(cell.edge_index, cells.graph.edge_index.flip(0))
        assert torch.equal(cell.edge_sign, -cells.graph.sign.float())


def test_one_cell():
    cells = CuratedGRN(num_cells=1)
    assert len(cells) == 1
    assert cells[0].x.shape == (11, 1)
    assert cells.expression.shape == (1, 11)


def test_pickle(hsc):
    copy = pickle.loads(pickle.dumps(hsc))
    assert torch.equal(copy.expression, hsc.expression)
    assert copy.graph.nodes == hsc.graph.nodes


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"name": "bone"}, "got 'bone'"),
        ({"dynamics": "ode"}, "hill, boolean; got 'ode'"),
        ({"dynamics": None}, "got None"),
        ({"num_cells": 0}, "num_cells .* at least 1; got 0"),
        ({"num_cells": 2.0}, r"num_cells .*got 2\.0"),
        ({"num_cells": True}, "num_cells .*got True"),
        ({"seed": -1}, "seed .* at least 0; got -1"),
        ({"noise": -0.1}, r"noise .*got -0\.1"),
        ({"noise": float("nan")}, "noise .*got nan"),
        ({"noise": 1.5, "dynamics": "boolean"}, r"noise .*at most 1; got 1\.5"),
        ({"measurement_noise": float("inf")}, "measurement_noise .*got inf"),
        ({"measurement_noise": "0.1"}, r"measurement_noise .*got '0\.1'"),
        ({"dropout_rate": 1.0}, r"dropout_rate .*below 1; got 1\.0"),
    ],
)
def test_bad_arguments_are_named(arguments, match):
    with pytest.raises(PriorGraphError, match=match):
        CuratedGRN(**arguments)


def test_label_column_must_not_hide_a_gene(hsc):
    with pytest.raises(PriorGraphError, match="'Gata1'"):
        hsc.to_frame(label="Gata1")


def test_numpy_integers_are_whole_numbers():
    assert len(CuratedGRN(name="mcad", num_cells=np.int64(3), seed=np.int32(2))) == 3


def test_graph_alone():
    assert curated_graph("mcad").nodes == ("Coup", "Emx2", "Fgf8", "Pax6", "Sp8")
