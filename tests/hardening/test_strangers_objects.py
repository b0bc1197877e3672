"""Frames, pairs, networkx graphs and payloads that hold anything: the right graph or PriorGraphError.

``PYG_KPNN_SWEEP`` sets how many inputs the long sweep makes.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import os
import random
import time
from collections import Counter

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

from pyg_kpnn import PriorGraph, PriorGraphError, align_inputs, parse_adjacency

SWEEP = int(os.environ.get("PYG_KPNN_SWEEP", "200000"))


class Rude:
    """An object whose every method raises."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __hash__ = __eq__ = __ne__ = __bool__ = __float__ = __str__


class Liar:
    def __str__(self):
        return 5


TEXT = [
    "a",
    "b",
    "c",
    "A",
    "1",
    "nan",
    "",
    " ",
    " a",
    "a\0",
    "é",
    "e\u0301",
    "\ud800",
    "'\\ud800'",
    "=1+1",
    "x" * 300,
]
NUMBERS = [0, 1, -1, True, 1.0, -0.0, 0.5, float("nan"), float("inf"), 2**63, 10**400, 10**5_000, 1 + 2j]
NUMBERS += [np.int8(1), np.float32(0.1), np.bool_(False), np.datetime64("NaT"), np.str_("a"), np.void(b"x")]
NUMBERS += [decimal.Decimal("1"), decimal.Decimal("NaN"), decimal.Decimal("sNaN"), fractions.Fraction(1, 2)]
THINGS = [
    None,
    pd.NA,
    pd.NaT,
    pd.Timestamp("2020"),
    datetime.date(2020, 1, 1),
    b"a",
    ("a",),
    (1, 2),
    [1],
    {"a": 1},
]
THINGS += [
    frozenset("a"),
    np.array([1, 2]),
    torch.tensor(1),
    torch.tensor([1, 2]),
    pd.Series([1]),
    range(3),
    object,
]
THINGS += [Rude(), Liar(), ..., slice(1, 2), float]


def text_of(value):
    """What a node's name has to be, said once more."""
    return "0.0" if isinstance(value, (float, np.floating)) and value == 0 else str(value)


def cells(rng, count):
    pool = rng.choice([TEXT, TEXT, NUMBERS, TEXT + NUMBERS, TEXT + NUMBERS + THINGS])
    return [rng.choice(pool) for _ in range(count)]


def object_column(values):
    column = pd.Series([None] * len(values), dtype=object)
    for row, value in enumerate(values):
        column.iat[row] = value
    return column


def from_pairs(rng, sources, targets, extra):
    return PriorGraph.from_edges(list(zip(sources, targets, strict=True)))


def from_frame(rng, sources, targets, extra):
    frame = pd.DataFrame({"source": object_column(sources), "target": object_column(targets)})
    return PriorGraph.from_pandas(frame)


def from_typed_frame(rng, sources, targets, extra):
    try:
        frame = pd.DataFrame({"source": pd.array(sources), "target": pd.array(targets)})
    except Exception:  # pandas' own
        return None
    if any(dtype.kind == "c" for dtype in frame.dtypes):
        return None  # 0j and -0+0j are one id with two texts
    sources[:], targets[:] = (
        frame["source"].array,
        frame["target"].array,
    )  # pandas may have made them one type
    return PriorGraph.from_pandas(frame)


def from_strict_frame(rng, sources, targets, extra):
    return parse_adjacency(pd.DataFrame({"source": object_column(sources), "target": object_column(targets)}))


def from_networkx(rng, sources, targets, extra):
    graph = nx.MultiDiGraph()
    try:
        graph.add_edges_from(zip(sources, targets, strict=True))
    except Exception:  # networkx' own: unhashable nodes and None
        return None
    sources[:], targets[:] = zip(*graph.edges(), strict=True)  # to networkx 1, 1.0 and True are one node
    return PriorGraph.from_networkx(graph)


def from_payload(rng, sources, targets, extra):
    edges = [list(pair) for pair in zip(sources, targets, strict=True)]
    payload = {"kpnn2_spec": 1, "layout": "adjacency", "edges": edges}
    return PriorGraph.from_dict(payload)


def to_two_sides(rng, sources, targets, extra):
    return PriorGraph.bipartite(list(zip(sources, targets, strict=True)))


def with_signs(rng, sources, targets, extra):
    graph = PriorGraph.from_edges(list(zip(sources, targets, strict=True)), sign=extra)
    assert graph.sign is None or set(graph.sign.tolist()) <= {-1, 0, 1}
    return graph


def with_weights(rng, sources, targets, extra):
    graph = PriorGraph.from_edges(list(zip(sources, targets, strict=True)), weight=extra)
    assert graph.weight is None or bool(graph.weight.isfinite().all())
    return graph


def with_nodes(rng, sources, targets, extra):
    graph = PriorGraph.from_edges(list(zip(sources, targets, strict=True)), nodes=extra)
    assert {text_of(value) for value in extra} <= set(graph.nodes)
    return graph


def with_widths(rng, sources, targets, extra):
    return PriorGraph.from_edges(list(zip(sources, targets, strict=True)), widths={sources[0]: extra[0]})


DOORS = [
    *(from_pairs, from_frame, from_typed_frame, from_strict_frame, from_networkx, from_payload, to_two_sides),
    *(with_signs, with_weights, with_nodes, with_widths),
]


def check_door(seed):
    rng = random.Random(seed)
    count = rng.choice([1, 1, 2, 3, 4])
    sources, targets, extra = cells(rng, count), cells(rng, count), cells(rng, count)
    if rng.random() < 0.5:
        sources = rng.sample(["p", "q", "r", "s"], count)
    door = DOORS[seed % len(DOORS)]
    graph, message = None, ""
    try:
        graph = door(rng, sources, targets, extra)
    except PriorGraphError as error:
        message = str(error)
    except (TypeError, RuntimeError):
        if door is not with_widths:  # where the dict written here asks its keys for their hash
            raise
    if message:
        assert len(message) < 4_000
        return "refused"
    if graph is None:
        return "not made"
    # no row is lost, and none is another's
    rows = sorted((text_of(s), text_of(t)) for s, t in zip(sources, targets, strict=True))
    assert list(graph.edges) == rows
    assert PriorGraph.from_dict(graph.to_dict()) == graph
    return "read"


def check_align(seed):
    rng = random.Random(seed)
    labels = cells(rng, rng.randint(1, 6))
    graph = PriorGraph.from_edges([("a", "b"), ("1", "nan")][: rng.randint(1, 2)])
    labels += rng.sample(graph.nodes, rng.choice([len(graph.nodes), 1]))
    rng.shuffle(labels)
    table = labels
    if rng.random() < 0.5:
        table = pd.DataFrame(np.arange(2 * len(labels)).reshape(2, -1))
        column = np.empty(len(labels), dtype=object)
        for place, label in enumerate(labels):
            column[place] = label
        try:
            table.columns = pd.Index(column, tupleize_cols=False)
        except Exception:  # pandas' own
            return "not made"
    message = ""
    try:
        aligned = align_inputs(table, graph)
    except PriorGraphError as error:
        message = str(error)
    if message:
        assert len(message) < 4_000
        return "refused"
    places = aligned.iloc[0].tolist() if isinstance(table, pd.DataFrame) else aligned.tolist()
    named = [(str(label), place) for place, label in enumerate(labels) if isinstance(label, (str, int))]
    for name, place in zip(graph.nodes, places, strict=True):
        assert [at for label, at in named if label == name] == [place]
    return "read"


def sweep(check, seeds, capsys):
    became = Counter()
    begun = time.monotonic()
    for seed in seeds:
        try:
            became[check(seed)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    with capsys.disabled():
        rate = became.total() / (time.monotonic() - begun)
        print(
            f"\n{became.total():,} inputs of odd objects, {became['read']:,} read, {rate:,.0f} a second",
            end=" ",
        )
    assert became["read"] > became.total() / 50
    return became


@pytest.mark.parametrize("check", [check_door, check_align])
def test_odd_objects_make_the_right_graph_or_are_refused(check, capsys):
    sweep(check, range(SWEEP // 200), capsys)


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_door, check_align])
def test_very_many_odd_objects_make_the_right_graph_or_are_refused(check, capsys):
    sweep(check, range(1_000_000, 1_000_000 + SWEEP // 4), capsys)
