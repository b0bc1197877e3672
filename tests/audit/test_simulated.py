"""Data made from a known graph: the audit finds the prior out where it is the truth, and only there."""

from __future__ import annotations

import time
from functools import partial

import pytest
from scipy import stats

from pyg_kpnn.auditing import audit, fit_adamw

FIT = partial(fit_adamw, steps=60)


def test_the_true_prior_beats_every_rewiring(made):
    network, simulate = made
    prior = network(9, 18, 0)
    report = audit(
        None, prior, simulate(prior, 150, 1), n=9, fit=partial(fit_adamw, steps=40), level=0.1, progress=False
    )
    assert report.p_value == 0.1
    assert report.helps
    assert report.effect > 2.0
    assert report.score > 0.25


def test_a_rewired_truth_is_no_better_than_its_rewirings(made):
    network, simulate = made
    prior = network(9, 18, 0)
    how = dict(n=9, fit=partial(fit_adamw, steps=25), level=0.1, progress=False, stability_seeds=0)
    report = audit(None, prior, simulate(prior.rewire(3), 150, 1), **how)
    assert report.p_value > 0.1
    assert not report.helps


@pytest.mark.slow
def test_the_true_prior_is_told_from_49_rewirings(made):
    network, simulate = made
    prior = network(20, 50, 0)
    spent = []

    def timed(*args):
        start = time.process_time()
        FIT(*args)
        spent.append(time.process_time() - start)

    report = audit(None, prior, simulate(prior, 300, 1), n=49, fit=timed, progress=False)
    assert report.p_value == 0.02
    assert report.distinct == 50
    assert report.helps
    print(f"{report}\nlongest fit {max(spent):.2f} s")  # stays below 2 s; read it with -s


@pytest.mark.slow
def test_p_values_are_uniform_where_the_truth_is_another_rewiring(made):
    network, simulate = made
    found = []
    for repeat in range(20):
        prior = network(20, 50, 100 + repeat)
        data = simulate(prior.rewire(repeat), 300, repeat)
        report = audit(None, prior, data, n=19, fit=FIT, seed=repeat, progress=False, stability_seeds=0)
        found.append(report.p_value)
    # p-values are multiples of 1/20, which makes the test a little stricter than it is for uniform numbers
    assert stats.kstest(found, "uniform").pvalue > 0.05
    assert sum(p <= 0.05 for p in found) <= 4  # 5 or more in 3 of 1000 runs
