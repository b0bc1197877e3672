"""Rules: parsed without eval, evaluated, read as signed edges, searched for attractors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pyg_kpnn.datasets.rules import BooleanNetwork
from pyg_kpnn.datasets.tables import curated_names, read_tables
from pyg_kpnn.errors import PriorGraphError

TRUTH = {
    "A": "A",
    "B": "not A",
    "C": "A and not B or C",
    "D": "not (A or (B and not C)) and True",
    "E": "False or (A and B and C)",
}


def every_state(size: int) -> np.ndarray:
    return np.array(list(itertools.product([False, True], repeat=size))).T


def test_rules_agree_with_the_truth_table_of_python():
    network = BooleanNetwork(TRUTH)
    for column in every_state(5).T:
        names = dict(zip(network.genes, column.tolist(), strict=True))
        wanted = [bool(eval(TRUTH[gene], {}, names)) for gene in network.genes]  # the oracle, test only
        assert network.update(column[:, None])[:, 0].tolist() == wanted


@pytest.mark.parametrize("name", ["hsc", "gsd", "mcad", "vsc"])
def test_published_rules_agree_with_the_truth_table_of_python(name):
    network = read_tables(name).network
    states = np.random.default_rng(0).random((len(network.genes), 53)) < 0.5
    got = network.update(states)
    for cell in range(53):
        names = dict(zip(network.genes, states[:, cell].tolist(), strict=True))
        assert got[:, cell].tolist() == [bool(eval(network.rules[g], {}, names)) for g in network.genes]


def test_relaxed_logic_is_product_and_probabilistic_or():
    network = BooleanNetwork({"A": "A and B", "B": "A or B", "C": "not C", "D": "True", "E": "False"})
    activity = np.array([[0.25], [0.5], [0.125], [0.0], [1.0]])
    assert network.relax(activity)[:, 0].tolist() == [0.125, 0.625, 0.875, 1.0, 0.0]


def test_sign_is_the_parity_of_nots():
    network = BooleanNetwork(
        {"A": "not not B", "B": "not (A and not C)", "C": "A and not A or B", "D": "not (not (not A))"}
    )
    assert network.edges() == (
        ("A", "B", -1),
        ("A", "C", 0),
        ("A", "D", -1),
        ("B", "A", 1),
        ("B", "C", 1),
        ("C", "B", 1),
    )


@pytest.mark.parametrize(
    "rule",
    [
        "A + B",
        "A if B else A",
        "__import__('os')",
        "A.real",
        "A == B",
        "1",
        "'A'",
        "~A",
        "[A]",
        "A and",
        "",
        "(lambda: A)()",
        "(A := B)",
        "A\x00",
    ],
)
def test_anything_but_boolean_logic_is_refused_by_name(rule):
    with pytest.raises(PriorGraphError, match="the rule of 'A'"):
        BooleanNetwork({"A": rule, "B": "A"})


def test_a_regulator_without_a_rule_is_named():
    with pytest.raises(PriorGraphError, match="'A' names 'Gata9'"):
        BooleanNetwork({"A": "not Gata9"})


def test_bad_genes_and_states_are_named():
    with pytest.raises(PriorGraphError, match="at least one gene"):
        BooleanNetwork({})
    with pytest.raises(PriorGraphError, match="'Z'"):
        BooleanNetwork({"A": "A"}, genes=["Z"])
    with pytest.raises(PriorGraphError, match="2 names for 1 rules; look at 'A'"):
        BooleanNetwork({"A": "A"}, genes=["A", "A"])
    with pytest.raises(PriorGraphError, match="'gata1'"):
        read_tables("hsc").network.state(["gata1"])


def test_gene_order_is_the_callers():
    network = BooleanNetwork({"A": "B", "B": "not A"}, genes=["B", "A"])
    assert network.update(np.array([[True], [False]]))[:, 0].tolist() == [True, True]
    assert repr(network) == "BooleanNetwork(2 genes, 2 edges)"


def test_attractors_by_hand():
    ring = BooleanNetwork({"A": "not C", "B": "A", "C": "B"})  # a negative loop: one cycle of six states
    (cycle,) = ring.attractors()
    assert len(cycle) == 6
    assert (False, True, False) not in cycle
    toggle = BooleanNetwork({"A": "not B", "B": "not A"})
    assert toggle.attractors(toggle.state(["B"])) == (((False, True),),)
    assert toggle.attractors(np.array([[True], [True]])) == (((False, True),), ((True, False),))


def test_exhaustive_search_has_a_stated_limit():
    network = BooleanNetwork({f"G{i}": f"G{i}" for i in range(19)})
    with pytest.raises(PriorGraphError, match="262,144"):
        network.attractors()
    assert len(network.attractors(network.state(["G3"]))) == 1


@pytest.mark.parametrize("name", curated_names())
def test_asynchronous_updates_reach_exactly_the_named_attractors(name):
    tables = read_tables(name)
    network = tables.network
    starts = None if tables.start is None else network.state(tables.start)
    named = {(tuple(network.state(on).tolist()),) for on in tables.attractors.values()}
    assert set(network.attractors(starts)) == named
