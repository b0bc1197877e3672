"""Simulate cells of a Boolean network: asynchronous Boolean or stochastic Hill dynamics.

Everything here is simulation. Arrays are numpy float64 with genes in rows and cells in columns, and every
random number comes from the generator the caller hands in: no global random state is read or changed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyg_kpnn.datasets.rules import Array, Attractor, BooleanNetwork

__all__ = ["Cells", "hill_activation", "settle", "simulate_boolean", "simulate_hill"]

HILL_EXPONENT = 4
HILL_HALF = 0.5
RATE_SPREAD = 1.0
TIME_STEP = 0.05
END_TIME = 5.0
FIRST_SNAPSHOT = 0.2
_REST_STEP, _REST_STEPS = 0.2, 500
_SETTLE_SWEEPS = 50


class Cells(NamedTuple):
    """Simulated cells.

    Attributes
    ----------
    level : (n, cells) float64 array
        Level of each gene at the cell's snapshot, 1 = fully on, never negative.
    attractor : list of attractors
        The attractor that each cell's own trajectory reached after the snapshot.
    """

    level: Array
    attractor: list[Attractor]


def hill_activation(level: Array) -> Array:
    r"""Normalised Hill activation of a regulator,

    .. math:: h(x) = \min\left(1, \frac{x^m (1 + K^m)}{x^m + K^m}\right), \qquad m = 4,\ K = 0.5,

    so that :math:`h(0) = 0` and :math:`h(1) = 1`, and a relaxed rule keeps the fixed points of the
    Boolean rule (Wittmann et al. 2009, *BMC Systems Biology* 3:98).

    Parameters
    ----------
    level : array
        Level of the regulator, not negative.

    Returns
    -------
    array
        Activity, 0 to 1, same shape.

    Examples
    --------
    >>> hill_activation(np.array([0.0, 0.5, 1.0, 3.0])).tolist()
    [0.0, 0.53125, 1.0, 1.0]
    """
    square = level * level
    power = square * square  # products, not pow: faster, and exact rounding everywhere
    half = HILL_HALF**HILL_EXPONENT
    return np.minimum(1.0, power * (1.0 + half) / (power + half))


def simulate_hill(network: BooleanNetwork, start: Array, noise: float, rng: np.random.Generator) -> Cells:
    r"""Snapshots of stochastic Hill dynamics.

    Each gene relaxes to its relaxed rule :math:`f_g` over Hill-activated regulators,

    .. math:: dx_g = \gamma_g \, (f_g(h(x)) - x_g) \, dt + \sigma \sqrt{x_g} \, dW_g,

    by Euler-Maruyama with step 0.05 from time 0 to 5 (unit: one median lifetime of a gene product), the
    relaxation exact within a step so that quick genes do not overshoot, clipped at zero. The noise is
    multiplicative: a gene that is off stays quiet. The rates :math:`\gamma` are lognormal (spread 1) for
    each gene and cell: cells differ in which gene is quick, as the order of updates differs in the
    Boolean model, and this is what makes cells from one start choose different fates. A cell is read at
    one uniformly random time between 0.2 and 5. Its trajectory then goes on to time 5, then without
    noise until it rests; :func:`settle` names the attractor.

    Parameters
    ----------
    network : BooleanNetwork
        The rules, ``n`` genes.
    start : (n, cells) bool array
        State of each cell at time 0; genes that are on start at level 1.
    noise : float
        :math:`\sigma`, in level per square root of time, not negative.
    rng : numpy.random.Generator
        Source of every random number.

    Returns
    -------
    Cells
    """
    genes, cells = start.shape
    rate = np.exp(RATE_SPREAD * rng.standard_normal((genes, cells)))
    steps = round(END_TIME / TIME_STEP)
    when = rng.integers(round(FIRST_SNAPSHOT / TIME_STEP), steps, size=cells, endpoint=True)
    part = -np.expm1(-TIME_STEP * rate)  # share of the way to its target that a gene goes in one step
    level = start.astype(np.float64)
    snapshot = np.empty_like(level)
    for step in range(1, steps + 1):
        drift = part * (network.relax(hill_activation(level)) - level)
        shock = noise * np.sqrt(TIME_STEP * level) * rng.standard_normal((genes, cells))
        level = np.maximum(0.0, level + drift + shock)
        here = when == step
        snapshot[:, here] = level[:, here]
    return Cells(snapshot, settle(network, _rest(network, level, rate), rng))


def _rest(network: BooleanNetwork, level: Array, rate: Array) -> Array:
    """Which genes of each cell are on once the noise-free trajectory from ``level`` rests."""
    level = level.copy()
    part = -np.expm1(-_REST_STEP * rate)
    moving = np.arange(level.shape[1])
    for _ in range(_REST_STEPS):
        here = level[:, moving]
        state = here > HILL_HALF
        # within 0.1 of a Boolean fixed point every activity is within 0.03 of 0 or 1: it is the one reached
        done = (network.update(state) == state).all(axis=0) & (np.abs(here - state) < 0.1).all(axis=0)
        moving, here = moving[~done], here[:, ~done]
        if not moving.size:
            break
        level[:, moving] = here + part[:, moving] * (network.relax(hill_activation(here)) - here)
    return level > HILL_HALF


def simulate_boolean(network: BooleanNetwork, start: Array, noise: float, rng: np.random.Generator) -> Cells:
    """Snapshots of asynchronous Boolean dynamics.

    At each step one gene of each cell, drawn uniformly, takes the value of its rule, or with probability
    ``noise`` the opposite value. Time counts ``n`` steps as one; a cell is read at one uniformly random step
    between time 0.2 and 5. Its trajectory then goes on to time 5, then without wrong updates to an attractor.

    Parameters
    ----------
    network : BooleanNetwork
        The rules, ``n`` genes.
    start : (n, cells) bool array
        State of each cell at time 0.
    noise : float
        Probability, 0 to 1, that one update goes wrong.
    rng : numpy.random.Generator
        Source of every random number.

    Returns
    -------
    Cells
        Levels are 0 or 1.
    """
    genes, cells = start.shape
    steps = round(END_TIME * genes)
    when = rng.integers(max(1, round(FIRST_SNAPSHOT * genes)), steps, size=cells, endpoint=True)
    state = start.copy()
    snapshot = np.empty_like(state)
    for step in range(1, steps + 1):
        _update_one(network, state, rng, noise)
        here = when == step
        snapshot[:, here] = state[:, here]
    return Cells(snapshot.astype(np.float64), settle(network, state, rng))


def settle(network: BooleanNetwork, state: Array, rng: np.random.Generator) -> list[Attractor]:
    """The attractor that each cell reaches by noise-free asynchronous updates from its state.

    Parameters
    ----------
    network : BooleanNetwork
        The rules, ``n`` genes.
    state : (n, cells) bool array
        Boolean state of each cell; left as it is.
    rng : numpy.random.Generator
        Draws the order of the updates.

    Returns
    -------
    list of attractors
        One for each cell, see :meth:`BooleanNetwork.attractors`.

    Examples
    --------
    >>> toggle = BooleanNetwork({"A": "not B", "B": "not A"})
    >>> settle(toggle, np.array([[True], [False]]), np.random.default_rng(0))
    [((True, False),)]
    """
    state = state.copy()
    moving = np.arange(state.shape[1])
    for _ in range(_SETTLE_SWEEPS * len(network.genes)):
        moving = moving[(network.update(state[:, moving]) != state[:, moving]).any(axis=0)]
        if not moving.size:
            break
        walkers = state[:, moving]
        _update_one(network, walkers, rng, 0.0)
        state[:, moving] = walkers
    ends: list[Attractor] = [(tuple(map(bool, column)),) for column in state.T]
    for cell in moving.tolist():  # a long way to a fixed point, or an attractor of many states
        ends[cell] = _walk(network, state[:, [cell]], rng)
    return ends


def _walk(network: BooleanNetwork, state: Array, rng: np.random.Generator) -> Attractor:
    """Random updates of one ``(n, 1)`` cell until it is inside an attractor."""
    reachable = network.attractors(state)
    while True:
        here = tuple(map(bool, state[:, 0]))
        for attractor in reachable:
            if len(reachable) == 1 or here in attractor:
                return attractor
        _update_one(network, state, rng, 0.0)


def _update_one(network: BooleanNetwork, state: Array, rng: np.random.Generator, noise: float) -> None:
    """Update one random gene of every ``(n, cells)`` column in place."""
    genes, cells = state.shape
    gene = rng.integers(genes, size=cells)
    wrong = rng.random(cells) < noise
    column = np.arange(cells)
    state[gene, column] = network.update(state)[gene, column] ^ wrong
