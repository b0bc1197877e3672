"""PriorDataModule: who is in which part, what standardises, and what comes in a batch."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset

from pyg_kpnn import PriorGraph, PriorGraphError
from pyg_kpnn.datasets import CuratedGRN, from_frame
from pyg_kpnn.train import PriorDataModule

GRAPH = PriorGraph.from_edges([("b", "a"), ("c", "b"), ("a", "c")])
NAN = float("nan")


def values(count: int = 60, seed: int = 1) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=draw) * torch.tensor([1.0, 5.0, 0.2]) + torch.tensor(
        [0.0, 9.0, 1e4]
    )


def parts(data: PriorDataModule) -> list[list[int]]:
    return [index.tolist() for index in (data.train_index, data.val_index, data.test_index)]


# --- the split ------------------------------------------------------------------------------------


def test_every_sample_is_in_one_part_and_classes_keep_their_shares():
    labels = torch.tensor([0] * 40 + [1] * 10 + [2] * 10)
    data = PriorDataModule(values(), labels, val_fraction=0.2, test_fraction=0.1)
    train, val, test = parts(data)
    assert sorted(train + val + test) == list(range(60))
    assert labels[val].bincount().tolist() == [8, 2, 2]
    assert labels[test].bincount().tolist() == [4, 1, 1]


def test_the_seed_decides_and_the_global_stream_stays():
    labels, x = torch.arange(60) % 3, values()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, again, other = (PriorDataModule(x, labels, seed=seed) for seed in (0, 0, 1))
    order = [list(map(len, one.train_dataloader())), [b[1].tolist() for b in one.train_dataloader()]]
    assert torch.equal(torch.get_rng_state(), state)
    assert parts(one) == parts(again)
    assert parts(one) != parts(other)
    assert order[1] == [b[1].tolist() for b in again.train_dataloader()]
    assert order[1] != [b[1].tolist() for b in other.train_dataloader()]


def test_a_rare_class_is_there_to_learn_from():
    labels = torch.tensor([0] * 20 + [1] + [2] * 2)
    data = PriorDataModule(values(23), labels, val_fraction=0.4, test_fraction=0.4)
    assert {20}.issubset(data.train_index.tolist())
    assert labels[data.train_index].unique().tolist() == [0, 1, 2]


def test_parts_that_are_not_wanted():
    data = PriorDataModule(values(), val_fraction=0, test_fraction=0)
    assert len(data.train_index) == 60
    assert not data.validates
    assert data.val_dataloader() == []
    assert data.test_dataloader() == []


# --- standardising --------------------------------------------------------------------------------


def test_statistics_are_those_of_the_training_part_alone():
    x = values()
    x[::7, 1] = NAN
    mask = torch.zeros(60, 3, dtype=torch.bool)
    mask[::5, 2] = True
    hidden = x.clone().masked_fill(mask, NAN)
    data = PriorDataModule(x, mask=mask)
    rows = hidden[data.train_index].double().numpy()
    np.testing.assert_allclose(data.scaling[0], np.nanmean(rows, 0), rtol=1e-12)
    np.testing.assert_allclose(data.scaling[1], np.nanstd(rows, 0), rtol=1e-9)
    whole = np.nanmean(hidden.double().numpy(), 0)
    assert abs(data.scaling[0].numpy() - whole).max() > 1e-3
    held_out = PriorDataModule(
        torch.where(torch.isin(torch.arange(60), data.train_index)[:, None], x, 1e6), mask=mask
    )
    assert torch.equal(held_out.scaling[0], data.scaling[0])


def test_columns_that_do_not_vary_or_are_not_measured():
    x = torch.tensor([[0.1, NAN, 1.0], [0.1, NAN, 3.0]]).repeat(10, 1)
    data = PriorDataModule(x, val_fraction=0, test_fraction=0)
    np.testing.assert_allclose(data.scaling[0], [float(torch.tensor(0.1)), 0.0, 2.0])
    assert data.scaling[1].tolist() == [1.0, 1.0, 1.0]
    batch, mask = next(iter(data.train_dataloader()))
    assert batch[:, :2].abs().max() < 1e-7
    assert mask.sum(0).tolist() == [0, 20, 0]


def test_rounding_is_no_deviation():
    # Dividing by a remainder of rounding would make noise as large as a measurement.
    x = torch.tensor([[0.1, 1e5 + 0.1, 1e-3]], dtype=torch.float64).expand(2049, -1)
    assert PriorDataModule(x, val_fraction=0, test_fraction=0).scaling[1].tolist() == [1.0, 1.0, 1.0]


def test_batches_hold_standardised_values():
    x = values()
    data = PriorDataModule(x, torch.arange(60) % 2, batch_size=32)
    joined = torch.cat([batch[0] for batch in data])
    torch.testing.assert_close(joined.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(joined.std(0, correction=0), torch.ones(3), atol=1e-5, rtol=0)
    plain = PriorDataModule(x, torch.arange(60) % 2, standardise=False)
    got, labels = next(iter(plain.predict_dataloader()))
    assert torch.equal(got, x)
    assert torch.equal(labels, torch.arange(60) % 2)


# --- what is taken --------------------------------------------------------------------------------


class Items(Dataset):
    def __init__(self, *columns: torch.Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, item: int):
        return tuple(column[item] for column in self.columns)


class Blocks(Items):
    def __getitems__(self, items: list[int]):
        return [self[item] for item in items]


@pytest.mark.parametrize("kind", [Items, Blocks])
def test_a_dataset_is_its_tensors(kind):
    x, y = values(), torch.arange(60) % 3
    mask = torch.arange(180).reshape(60, 3) % 11 == 0
    tensors = PriorDataModule(x, y, mask=mask)
    dataset = PriorDataModule(kind(x, y, mask))
    assert parts(tensors) == parts(dataset)
    assert torch.equal(tensors.scaling[1], dataset.scaling[1])
    for one, other in zip(tensors.val_dataloader(), dataset.val_dataloader(), strict=True):
        assert len(one) == 3
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)


def test_a_frame_is_read_by_name():
    frame = pd.DataFrame(
        {"c": [1.0, 2.0, 3.0], "cell": ["x", "w", "x"], "a": [4.0, None, 6.0], "b": [7, 8, 9]}
    )
    data = PriorDataModule(
        frame, "cell", graph=GRAPH, val_fraction=0, test_fraction=0, standardise=False, batch_size=9
    )
    x, y, mask = next(iter(data.predict_dataloader()))
    assert x.tolist() == [[4.0, 7.0, 1.0], [0.0, 8.0, 2.0], [6.0, 9.0, 3.0]]
    assert mask.tolist() == [[False] * 3, [True, False, False], [False] * 3]
    assert y.tolist() == [1, 0, 1]
    assert data.class_names == ("w", "x")


@pytest.mark.parametrize(
    ("labels", "expected", "names"),
    [
        ([0.5, 1.5], [0.5, 1.5], ()),
        (["t", "B"], [1, 0], ("B", "t")),
        ((10, 9), [0, 1], ("10", "9")),
        (pd.Series(["t", "B"], dtype="category"), [1, 0], ("B", "t")),
        (torch.tensor([3, 1], dtype=torch.int32), [3, 1], ()),
    ],
)
def test_labels(labels, expected, names):
    data = PriorDataModule(values(2), labels, val_fraction=0, test_fraction=0)
    got = next(iter(data.predict_dataloader()))[1]
    assert got.tolist() == expected
    assert got.dtype == (torch.float32 if isinstance(expected[0], float) else torch.int64)
    assert data.class_names == names


class Mapped(Items):
    def __getitem__(self, item: int):
        return {"x": self.columns[0][item]}


class Told(Blocks):
    """Says its labels and classes, and counts the samples that are read."""

    def __init__(self, *columns, **told) -> None:
        super().__init__(*columns)
        self.read = 0
        self.__dict__.update(told)

    def __getitem__(self, item: int):
        self.read += 1
        return super().__getitem__(item)


X, Y = values(), torch.arange(60) % 2
NAMES = ("dull", "bright", "never seen")


@pytest.mark.parametrize("names", [NAMES, list(NAMES)])
def test_a_dataset_says_its_labels_and_classes(names):
    told = Told(X, Y, labels=Y, class_names=names)
    data = PriorDataModule(told, standardise=False)
    assert told.read == 1  # what a sample looks like
    assert data.class_names == NAMES
    assert parts(data) == parts(PriorDataModule(X, Y))
    told.read = 0
    PriorDataModule(told)
    assert told.read == 1 + len(data.train_index)  # for the scaling


@pytest.mark.parametrize("labels", [None, [0] * 60, "y", Y[:59], torch.tensor(3)])
def test_a_dataset_with_other_labels_is_gone_through(labels):
    told = Told(X, Y, labels=labels, class_names="ab")
    data = PriorDataModule(told, standardise=False)
    assert told.read == 61
    assert data.class_names == ()
    assert parts(data) == parts(PriorDataModule(X, Y))


def test_numbers_and_no_labels_have_no_classes():
    numbers = Told(X, Y.float(), labels=Y.float(), class_names=("a", "b"))
    assert PriorDataModule(numbers, standardise=False).class_names == ()
    assert numbers.read == 1
    bare = Told(X, labels=Y, class_names=("a", "b"))
    bare.columns = (X,)
    data = PriorDataModule(bare, standardise=False)
    assert (data.class_names, bare.read) == ((), 1)
    assert parts(data) == parts(PriorDataModule(X))


def test_aligned_samples_bring_their_classes():
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})
    state = pd.Categorical.from_codes(Y, categories=NAMES)
    aligned = from_frame(frame, GRAPH, pd.Series(state))
    data = PriorDataModule(aligned)
    assert data.class_names == NAMES
    assert parts(data) == parts(PriorDataModule(X, Y))
    assert PriorDataModule(from_frame(frame, GRAPH)).class_names == ()
    assert PriorDataModule(aligned[:10]).class_names == NAMES


def test_simulated_cells_are_their_table():
    cells = CuratedGRN(name="mcad", num_cells=40)
    data = PriorDataModule(cells[5:], graph=cells.graph)
    plain = PriorDataModule(cells.expression[5:], cells.labels[5:])
    assert data.class_names == cells.class_names == ("anterior", "posterior")
    assert parts(data) == parts(plain)
    for one, other in zip(data.val_dataloader(), plain.val_dataloader(), strict=True):
        assert [torch.equal(a, b) for a, b in zip(one, other, strict=True)] == [True, True]


def test_two_workers():
    data = PriorDataModule(values(), torch.arange(60) % 2, batch_size=32, num_workers=1)
    assert sum(len(y) for _, y in data.train_dataloader()) == len(data.train_index)


FRAME = pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [1.0, 2.0], "cell": ["x", "y"]})
CELLS = CuratedGRN(name="mcad", num_cells=5)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3,), {}, "'data' must be a tensor, a DataFrame or a map-style Dataset. Got int"),
        ((X.long(),), {}, r"'data' must be \(samples, units\) in floating point. Got \(60, 3\) torch.int64"),
        ((X[0],), {}, r"Got \(3,\)"),
        ((X[:0],), {}, r"Got \(0, 3\)"),
        ((X,), {"graph": 3}, "'graph' must be a PriorGraph. Got int"),
        ((X[:, :2],), {"graph": GRAPH}, "one column a unit of the graph, 3. Got 2"),
        ((X, Y[:5]), {}, r"'labels' must have one entry a sample, 60, or one a value. Got \(5,\)"),
        ((X, Y - 1), {}, "Classes must be numbered from 0. Got -1"),
        ((X, Y.bool()), {}, "Classes must be integers"),
        ((X, X.long()), {}, "Classes must be integers, one a sample"),
        ((X, "cell"), {}, r"'labels' must be a tensor or a sequence. Got 'cell' \(str\)"),
        ((X[:2], ["x", None]), {}, "Every sample must have a class. Got None at position 1"),
        ((X,), {"mask": Y}, r"'mask' must be boolean of shape \(60, 3\). Got \(60,\) torch.int64"),
        ((FRAME,), {}, "A DataFrame needs 'graph'"),
        ((FRAME, "Cell"), {"graph": GRAPH}, "must name one column of the frame. Got 'Cell'.*'cell'"),
        ((FRAME, FRAME["cell"].iloc[::-1]), {"graph": GRAPH}, "must have that of the frame"),
        ((FRAME.drop(columns="a"), "cell"), {"graph": GRAPH}, "'a'|column"),
        ((FRAME.assign(a=["p", "q"]),), {"graph": GRAPH}, "Columns of nodes must hold numbers"),
        ((Items(X, Y), Y), {}, "A dataset brings its labels and masks"),
        ((Items(X[:0]),), {}, "must have samples by number"),
        ((Items(X, Y, Y, Y),), {}, r"must be x, \(x, y\) or \(x, y, key_padding_mask\). Got 4 parts at 0"),
        ((from_frame(FRAME, GRAPH, "cell").as_graphs(),), {}, r"must be x, \(x, y\) or .* Got Data at 0"),
        ((Mapped(X),), {}, r"must be x, \(x, y\) or .* Got dict at 0"),
        ((CELLS,), {"graph": GRAPH}, "one column a unit of the graph, 3. Got 5"),
        ((CELLS, CELLS.labels), {}, "A dataset brings its labels and masks"),
        ((Items(Y),), {}, "must be a row of floating-point values"),
        ((X,), {"val_fraction": 1.0}, "'val_fraction' must be a number from 0 to below 1. Got 1.0"),
        ((X,), {"test_fraction": -0.1}, "'test_fraction' must be"),
        ((X,), {"test_fraction": NAN}, "'test_fraction' must be"),
        ((X,), {"val_fraction": 0.5, "test_fraction": 0.5}, "must leave something to train on"),
        ((X,), {"batch_size": 0}, "batch_size must be a positive integer"),
        ((X,), {"num_workers": -1}, "'num_workers' must be an int of at least 0. Got -1"),
        ((X,), {"seed": "1"}, "'seed' must be an int of at least 0"),
        ((X,), {"standardise": 1}, "standardise must be True or False"),
    ],
)
def test_bad_input(arguments, options, message):
    with pytest.raises(PriorGraphError, match=message):
        PriorDataModule(*arguments, **options)
