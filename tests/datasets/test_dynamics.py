"""Simulation: fixed points stay put, labels are the attractors reached, no global randomness."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from pyg_kpnn.datasets.dynamics import hill_activation, settle, simulate_boolean, simulate_hill
from pyg_kpnn.datasets.rules import BooleanNetwork
from pyg_kpnn.datasets.tables import read_tables

SIMULATORS = [simulate_hill, simulate_boolean]
TOGGLE = BooleanNetwork({"A": "not B", "B": "not A"})


def start_of(name, cells):
    tables = read_tables(name)
    return tables.network, np.repeat(tables.network.state(tables.start)[:, None], cells, axis=1)


def test_hill_activation_by_hand():
    assert hill_activation(np.array([0.0, 1.0, 7.0])).tolist() == [0.0, 1.0, 1.0]
    assert hill_activation(np.array([0.5])).tolist() == [0.5 * (1 + 0.5**4)]
    rising = hill_activation(np.linspace(0, 1, 101))
    assert (np.diff(rising) > 0).all()


@pytest.mark.parametrize("simulate", SIMULATORS)
@pytest.mark.parametrize("name", ["hsc", "gsd", "mcad", "vsc"])
def test_without_noise_a_cell_in_an_attractor_stays_in_it(simulate, name):
    tables = read_tables(name)
    start = np.stack([tables.network.state(on) for on in tables.attractors.values()], axis=1)
    cells = simulate(tables.network, start, 0.0, np.random.default_rng(0))
    np.testing.assert_allclose(cells.level, start.astype(float), atol=1e-12)
    assert cells.attractor == [(tuple(column.tolist()),) for column in start.T]


def test_hill_decay_by_hand():
    # a gene that nothing keeps on decays as exp(-rate * t): the log level is -rate * t, always below 0
    network = BooleanNetwork({"A": "False"})
    rng, again = np.random.default_rng(5), np.random.default_rng(5)
    cells = simulate_hill(network, np.ones((1, 7), dtype=bool), 0.0, rng)
    rate = np.exp(again.standard_normal((1, 7)))
    steps = again.integers(4, 100, size=7, endpoint=True)
    np.testing.assert_allclose(cells.level, np.exp(-rate * 0.05 * steps), rtol=1e-10)
    assert set(cells.attractor) == {((False,),)}


@pytest.mark.parametrize("simulate", SIMULATORS)
def test_labels_are_attractors_and_every_fate_is_reached(simulate):
    network, start = start_of("hsc", 600)
    cells = simulate(network, start, 0.0, np.random.default_rng(1))
    assert set(cells.attractor) == set(network.attractors(start[:, :1]))


def test_late_cells_look_like_their_label():
    network, start = start_of("hsc", 300)
    cells = simulate_hill(network, start, 0.0, np.random.default_rng(2))
    ends = np.array([a[0] for a in cells.attractor]).T
    match = ((cells.level > 0.5) == ends).mean()
    other = ((cells.level > 0.5) == np.roll(ends, 1, axis=1)).mean()
    assert match > 0.8
    assert match > other + 0.15


def test_label_is_decided_by_the_cells_own_rates_not_by_a_coin():
    # from both on, both genes of a toggle fall together and the quicker one loses
    cells = simulate_hill(TOGGLE, np.ones((2, 400), dtype=bool), 0.0, np.random.default_rng(4))
    rate = np.exp(np.random.default_rng(4).standard_normal((2, 400)))
    clear = np.abs(np.log(rate[0] / rate[1])) > 0.2
    a_wins = np.array([attractor[0][0] for attractor in cells.attractor])
    assert ((rate[0] < rate[1]) == a_wins)[clear].mean() > 0.97
    undecided = (cells.level > 0.5).all(axis=0)
    assert undecided.sum() > 20  # among them are cells read before they chose


@pytest.mark.parametrize("simulate", SIMULATORS)
def test_noise_is_multiplicative_or_an_error_rate_and_levels_never_negative(simulate):
    network, start = start_of("hsc", 97)
    quiet = simulate(network, start, 0.0, np.random.default_rng(3)).level
    loud = simulate(network, start, 0.6, np.random.default_rng(3)).level
    assert (quiet != loud).any()
    assert (loud >= 0).all()
    assert np.isfinite(loud).all()


def test_an_off_gene_stays_quiet_in_hill_noise():
    network = BooleanNetwork({"A": "A", "B": "B"})
    cells = simulate_hill(network, np.array([[True] * 5, [False] * 5]), 0.5, np.random.default_rng(0))
    assert (cells.level[1] == 0).all()
    assert (cells.level[0] != 1).all()


def test_boolean_cells_are_zero_or_one_and_reachable():
    start = np.ones((2, 50), dtype=bool)
    cells = simulate_boolean(TOGGLE, start, 0.0, np.random.default_rng(0))
    assert set(cells.level.ravel().tolist()) == {0.0, 1.0}
    assert not (cells.level == 0).all(axis=0).any()  # both off cannot be reached from both on
    assert set(cells.attractor) == {((True, False),), ((False, True),)}


def test_settle_leaves_its_input_alone_and_finds_cycles():
    ring = BooleanNetwork({"A": "not C", "B": "A", "C": "B"})
    state = np.array([[False, True], [True, True], [False, True]])
    before = state.copy()
    ends = settle(ring, state, np.random.default_rng(0))
    assert (state == before).all()
    assert ends == [ring.attractors()[0]] * 2


def test_settle_walks_into_one_of_several_cycles():
    # S decides once and for all between two loops: with S on, A oscillates; with S off, B does
    network = BooleanNetwork({"S": "S and not T", "T": "T and not S", "A": "S and not A", "B": "T and not B"})
    state = np.repeat(network.state(["S", "T"])[:, None], 20, axis=1)
    ends = settle(network, state, np.random.default_rng(0))
    assert {len(end) for end in ends} == {2}
    assert len(set(ends)) == 2


@pytest.mark.parametrize("simulate", SIMULATORS)
def test_same_generator_same_bits_and_global_state_untouched(simulate):
    network, start = start_of("gsd", 31)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state()
    first = simulate(network, start, 0.05, np.random.default_rng(7))
    second = simulate(network, start, 0.05, np.random.default_rng(7))
    other = simulate(network, start, 0.05, np.random.default_rng(8))
    assert first.level.tobytes() == second.level.tobytes()
    assert first.attractor == second.attractor
    assert (first.level != other.level).any()
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.random.get_rng_state(), states[2])
