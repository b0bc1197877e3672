"""Permutation tests of edges against enumeration, known nulls and planted effects."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from pyg_kpnn import PriorGraph, PriorGraphError, PriorTransformer
from pyg_kpnn.explain import differential_edges, edge_weights
from pyg_kpnn.explain.permutations import false_discovery, permuted_labels

D = torch.float64
GRAPH = PriorGraph.from_edges([("a", "t"), ("b", "t"), ("c", "t"), ("d", "u"), ("t", "u")])


def build(graph=GRAPH, seed=3, **options):
    torch.manual_seed(seed)
    return PriorTransformer(graph, embed_dim=6, num_heads=2, num_layers=1, **options).to(D).eval()


def values(*shape, seed=5):
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def mean_weights(model, x, layer=0):
    """``(S, E)``, heads averaged."""
    return model.edge_weights(x)[layer].detach().numpy().mean(-1)


def test_effects_are_those_of_the_weights():
    model, x = build(), values(12, 6)
    labels = np.array(list("xyxyzyxxyyzx"))
    table = differential_edges(model, x, labels, "x", "y", n_permutations=9)
    w = mean_weights(model, x)
    a, b = w[labels == "x"], w[labels == "y"]
    names = edge_weights(model, x, heads="mean")
    pd.testing.assert_frame_equal(
        table[["layer", "head", "source", "target"]], names[["layer", "head", "source", "target"]]
    )
    np.testing.assert_allclose(table.mean_a, a.mean(0), rtol=1e-12)
    np.testing.assert_allclose(table.mean_b, b.mean(0), rtol=1e-12)
    np.testing.assert_allclose(table.difference, a.mean(0) - b.mean(0), rtol=1e-9, atol=1e-15)
    pooled = np.sqrt(
        ((len(a) - 1) * a.var(0, ddof=1) + (len(b) - 1) * b.var(0, ddof=1)) / (len(a) + len(b) - 2)
    )
    some = pooled > 1e-12
    assert some.sum() >= 7
    d = (a.mean(0) - b.mean(0))[some] / pooled[some]
    np.testing.assert_allclose(table.cohens_d[some], d, rtol=1e-9)
    assert (table.samples_a == 5).all()
    assert (table.samples_b == 5).all()


def test_p_values_approach_those_of_all_relabellings():
    model, x, n = build(), values(7, 6), 3999
    labels = list("xxxyyyy")
    table = differential_edges(model, x, labels, "x", "y", n_permutations=n)
    w = mean_weights(model, x)
    every = []
    for chosen in itertools.combinations(range(7), 3):
        inside = np.isin(np.arange(7), chosen)
        every.append(np.abs(w[inside].mean(0) - w[~inside].mean(0)))
    exact = (np.array(every) >= every[0] - 1e-12).mean(0)
    assert len(every) == 35
    error = np.abs(table.p_value.to_numpy() - exact) / np.sqrt(exact * (1 - exact) / n + 1e-9)
    assert error.max() < 4.5
    counts = table.p_value * (n + 1)
    np.testing.assert_allclose(counts, counts.round(), rtol=1e-12)


def test_a_permutation_counts_itself_in():
    """With one permutation p can only be 1/2 or 1."""
    table = differential_edges(build(), values(8, 6), list("xxxxyyyy"), "x", "y", n_permutations=1)
    assert set(table.p_value.round(12)) <= {0.5, 1.0}


def test_null_data_give_uniform_p():
    """Edges of disjoint components over independent noise are independent tests."""
    pairs = [(f"{kind}{i}", f"t{i}") for i in range(400) for kind in "ab"]
    graph = PriorGraph.from_edges(pairs)
    model = build(graph, add_self_loops=False)
    first = [(f"a{i}", f"t{i}") for i in range(400)]
    table = differential_edges(
        model, values(20, 1200), list("xy" * 10), "x", "y", edges=first, n_permutations=199
    )
    assert stats.kstest(table.p_value, "uniform").pvalue > 0.01
    assert abs((table.p_value <= 0.1).mean() - 0.1) < 4 * math.sqrt(0.09 / 400)
    assert table.q_value.min() > 0.05


def planted(graph=GRAPH):
    """Node a is high in x and low in y; only edges into t and, from there, none else can tell."""
    x = 0.3 * values(24, 6)
    x[:12, 0] += 2.0
    x[12:, 0] -= 2.0
    return x, ["x"] * 12 + ["y"] * 12


def test_a_planted_edge_is_found_and_no_other():
    x, labels = planted()
    table = differential_edges(build(), x, labels, "x", "y", n_permutations=999, seed=1)
    found = table[table.q_value < 0.05]
    ends = set(zip(found.source, found.target, strict=True))
    assert ("a", "t") in ends
    # the weights of t's edges sum to 1, and a's own loop is its only edge: nothing outside can move
    assert {target for _, target in ends} == {"t"}
    assert table.p_value.min() == pytest.approx(1 / 1000)


def test_permuting_within_donors_takes_a_donor_effect_away():
    x, donors = planted()
    labels = list("xxxxxxxxxxyy" + "yyyyyyyyyyxx")  # mostly one label a donor
    free = differential_edges(build(), x, labels, "x", "y", edges=[("a", "t")])
    kept = differential_edges(build(), x, labels, "x", "y", edges=[("a", "t")], within=donors)
    assert free.p_value[0] <= 0.01
    assert kept.p_value[0] > 0.05
    assert kept.difference[0] == free.difference[0]


@pytest.mark.parametrize("heads", ["mean", "each"])
def test_blocks_and_batches_do_not_matter(heads):
    torch.manual_seed(0)
    model = PriorTransformer(GRAPH, embed_dim=6, num_heads=2, num_layers=2).to(D).eval()
    x, labels = values(15, 6), list("xyzxyzxyzxyzxyy")
    options = {"n_permutations": 99, "heads": heads}
    whole = differential_edges(model, x, labels, "x", "y", **options)
    for other in (
        {"block_bytes": 1},
        {"block_bytes": 40_000},
        {"batch_size": 4},
        {"batch_size": 1, "block_bytes": 20_000},
    ):
        again = differential_edges(model, x, labels, "x", "y", **options, **other)
        pd.testing.assert_frame_equal(again, whole, rtol=1e-9, atol=1e-12)
        assert again.p_value.tolist() == whole.p_value.tolist()
    assert len(whole) == 2 * (1 if heads == "mean" else 2) * 11


def test_a_seed_gives_the_same_bits_and_leaves_global_generators_alone():
    model, x, labels = build(), values(12, 6), list("xy" * 6)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = differential_edges(model, x, labels, "x", "y", n_permutations=99, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()
    torch.manual_seed(99)
    pd.testing.assert_frame_equal(
        differential_edges(model, x, labels, "x", "y", n_permutations=99, seed=4), first, check_exact=True
    )
    other = differential_edges(model, x, labels, "x", "y", n_permutations=99, seed=5)
    assert other.p_value.tolist() != first.p_value.tolist()


def test_edges_by_name_in_their_order_with_loops():
    model, x, labels = build(), values(12, 6), list("xy" * 6)
    table = differential_edges(model, x, labels, "x", "y", edges=[("t", "t"), ("c", "t")], n_permutations=19)
    full = differential_edges(model, x, labels, "x", "y", n_permutations=19)
    assert list(zip(table.source, table.target, strict=True)) == [("t", "t"), ("c", "t")]
    keyed = full.set_index(["source", "target"])
    assert table.p_value.tolist() == [keyed.p_value[("t", "t")], keyed.p_value[("c", "t")]]
    np.testing.assert_allclose(table.mean_a, [keyed.mean_a[("t", "t")], keyed.mean_a[("c", "t")]], rtol=1e-12)


def test_a_constant_weight_is_no_difference():
    """A node's only edge has weight 1 in every sample."""
    table = differential_edges(
        build().float(), values(12, 6).float(), list("xy" * 6), "x", "y", n_permutations=19
    )
    loop = table[(table.source == "a") & (table.target == "a")].iloc[0]
    assert (loop.difference, loop.p_value) == (0.0, 1.0)
    assert np.isnan(loop.cohens_d)


def test_masked_samples_do_not_count():
    model, x = build(), values(12, 6)
    labels, mask = np.array(list("xy" * 6)), torch.zeros(12, 6, dtype=torch.bool)
    mask[:4, 0] = True  # a: two of each group
    mask[::2, 1] = True  # b: all of x
    table = differential_edges(model, x, labels, "x", "y", key_padding_mask=mask, n_permutations=49)
    rows = table.set_index(["source", "target"])
    a_t, b_t = rows.loc[("a", "t")], rows.loc[("b", "t")]
    w = model.edge_weights(x, mask)[0].detach().numpy().mean(-1)[:, 0]
    assert (a_t.samples_a, a_t.samples_b, b_t.samples_a, b_t.samples_b) == (4, 4, 0, 6)
    np.testing.assert_allclose(a_t.difference, w[4::2].mean() - w[5::2].mean(), rtol=1e-9)
    assert np.isnan([b_t.p_value, b_t.q_value, b_t.difference]).all()
    # the same permutations, one after the other
    count, observed = 0, abs(w[4::2].mean() - w[5::2].mean())
    for row in permuted_labels(labels == "x", None, 49, 0)[1:]:
        here, there = w[4:][row[4:]], w[4:][~row[4:]]
        count += 1 if min(len(here), len(there)) == 0 else abs(here.mean() - there.mean()) >= observed - 1e-12
    assert a_t.p_value == pytest.approx((1 + count) / 50)


def test_masked_samples_count_where_they_were_attended_to():
    model = PriorTransformer(GRAPH, embed_dim=6, num_heads=2, num_layers=2).to(D).eval()
    x, mask = values(12, 6), torch.zeros(12, 6, dtype=torch.bool)
    mask[::2, 4] = True  # t, which hears a: all of x
    table = differential_edges(
        model, x, list("xy" * 6), "x", "y", layer=[0, 1], key_padding_mask=mask, n_permutations=9
    )
    t_u = table[(table.source == "t") & (table.target == "u")]
    assert dict(zip(t_u["layer"], t_u.samples_a, strict=True)) == {0: 0, 1: 6}
    assert dict(zip(t_u["layer"], t_u.p_value.isna(), strict=True)) == {0: True, 1: False}
    alone = differential_edges(
        model, x, list("xy" * 6), "x", "y", layer=[1], key_padding_mask=mask, n_permutations=9
    )
    both = table[table["layer"] == 1].reset_index(drop=True)
    columns = ["mean_a", "mean_b", "p_value", "samples_a"]
    pd.testing.assert_frame_equal(alone[columns], both[columns])


def test_permutations_with_an_empty_side_count_against_the_edge():
    mask = torch.zeros(12, 6, dtype=torch.bool)
    mask[2:, 0] = True  # a is there in one sample of each group
    table = differential_edges(
        build(), values(12, 6), list("xy" * 6), "x", "y", key_padding_mask=mask, n_permutations=49
    )
    row = table.set_index(["source", "target"]).loc[("a", "t")]
    assert (row.samples_a, row.samples_b) == (1, 1)
    assert row.p_value == 1.0  # both on one side, or the same difference


def test_strata_meet_their_samples():
    model, x = build(), values(14, 6)
    labels, donors = np.array(list("zxxyxyyxyxxyzx")), np.array(list("ppppqqpqqppppp"))
    table = differential_edges(model, x, labels, "x", "y", within=donors, n_permutations=199, seed=2)
    used = labels != "z"
    w, inside = mean_weights(model, x)[used], (labels == "x")[used]
    rows = permuted_labels(inside, (donors == "q").astype(int)[used], 199, 2)
    every = np.array([np.abs(w[row].mean(0) - w[~row].mean(0)) for row in rows])
    np.testing.assert_allclose(table.p_value, (every >= every[0] - 1e-12).mean(0), rtol=1e-12)


def test_q_values_are_those_of_scipy():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=100) ** 3
    p[10:20] = p[5]
    np.testing.assert_allclose(false_discovery(p), stats.false_discovery_control(p), rtol=1e-12)
    gaps = p.copy()
    gaps[[3, 50]] = np.nan
    kept = ~np.isnan(gaps)
    np.testing.assert_allclose(
        false_discovery(gaps)[kept], stats.false_discovery_control(p[kept]), rtol=1e-12
    )
    table = differential_edges(build(), values(12, 6), list("xy" * 6), "x", "y", n_permutations=99)
    np.testing.assert_allclose(table.q_value, stats.false_discovery_control(table.p_value), rtol=1e-12)


def test_permutations_stay_within_strata():
    first = np.array([True, False, False, True, True, False])
    strata = np.array([0, 0, 0, 1, 1, 1])
    rows = permuted_labels(first, strata, 500, 0)
    assert (rows[0] == first).all()
    assert (rows[:, :3].sum(1) == 1).all()
    assert (rows[:, 3:].sum(1) == 2).all()
    assert len(np.unique(rows, axis=0)) == 9
    assert np.abs(rows[1:, :3].mean(0) - 1 / 3).max() < 4.5 * math.sqrt(2 / 9 / 500)


X, LABELS = values(6, 6), list("xxxyyy")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": "X"}, "a must be a label in labels, got 'X' .differs only in case from 'x'"),
        ({"b": "q"}, "b must be a label in labels, got 'q'"),
        ({"b": "x"}, "a and b must be different labels"),
        ({"labels": list("xyyyyy")}, "a must label at least 2 samples"),
        ({"labels": list("xxyy")}, "got 4 for 6 samples"),
        ({"labels": "y"}, "must be a sequence"),
        ({"within": list("ppp")}, "within must have one label a sample, got 3 for 6"),
        ({"within": list("pppqqq")}, "needs one that holds samples of both"),
        ({"n_permutations": 0}, "n_permutations must be a positive integer"),
        ({"block_bytes": 0}, "block_bytes must be a positive integer"),
        ({"edges": [("a", "u")]}, "An edge must be in the graph. Got 'a' -> 'u'"),
        ({"edges": [("A", "t")]}, "differs only in case from 'a'"),
        ({"edges": ["at"]}, r"must be \(source, target\), got 'at'"),
        ({"edges": [("a", "t"), ("a", "t")]}, "edges must be different"),
        ({"edges": []}, "at least one"),
        ({"edges": "at"}, "edges must be a sequence"),
        ({"layer": 1}, r"numbers in \[0, 1\)"),
        ({"heads": 2}, "'heads' must be"),
        ({"data": iter([X]), "block_bytes": 1}, "goes through the samples 11 times, got a list_iterator"),
        ({"data": [X[:5]]}, "got 6 for 5 samples"),
    ],
)
def test_refused(changed, message):
    given = {"data": X, "labels": LABELS, "a": "x", "b": "y", **changed}
    with pytest.raises(PriorGraphError, match=message):
        differential_edges(build(), given.pop("data"), **given)
