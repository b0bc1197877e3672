"""Random graphs through every backend: values, weights and gradients against the dense reference.

``PYG_KPNN_SWEEP`` is the number of graphs, by default 1,000 in the fast suite and 100,000 in the slow one;
``PYG_KPNN_SWEEP_FROM`` the first of them. A graph that fails is named, and ``random_problem(number)`` in
``tests/strategies.py`` makes it again.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
import torch
from hypothesis import given, settings

from pyg_kpnn.ops import backends, edge_attention

# Relative to the largest entry of a tensor.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def results(problem, backend, dtype):
    """Mix, weights where asked for, and the gradients of every input."""
    leaves = problem.leaves(dtype)
    rest = iter(leaves[3:])
    mixed, weights = edge_attention(
        *leaves[:3],
        problem.layout,
        bias=None if problem.bias is None else next(rest),
        edge_features=None if problem.edge_features is None else next(rest),
        key_mask=problem.key_mask,
        dropout_p=problem.dropout_p,
        dropout_seed=problem.dropout_seed,
        chunk_size=problem.chunk_size,
        backend=backend,
        need_weights=problem.need_weights,
    )
    loss, found = (mixed * problem.factors[0].to(dtype)).sum(), [mixed]
    if weights is not None:
        loss = loss + (weights * problem.factors[1].to(dtype)).sum()
        found.append(weights)
    return [*(t.detach() for t in found), *torch.autograd.grad(loss, leaves)]


def scales(expected, outputs):
    """Largest entry of each output; of gradients that of all, since small ones are differences of large."""
    largest = [float(t.abs().max()) if t.numel() else 0.0 for t in expected]
    return [*largest[:outputs], *[max(largest[outputs:])] * (len(largest) - outputs)]


def disagreement(problem, backend, dtype, expected):
    """What is wrong with a backend's results, or None; and how far off the worst of them is."""
    found = results(problem, backend, dtype)
    worst = 0.0
    each = zip(found, expected, scales(expected, 1 + problem.need_weights), strict=True)
    for index, (mine, theirs, scale) in enumerate(each):
        if mine.shape != theirs.shape or mine.dtype != dtype:
            return f"result {index} is {mine.dtype} {tuple(mine.shape)}", worst
        if not mine.numel():
            continue
        # All 0, or what rounding leaves of 0: then the difference itself.
        error = float((mine.double() - theirs).abs().max()) / (scale if scale > 1e-6 else 1.0)
        if not error < TOLERANCE[dtype]:
            return f"result {index} is off by {error:.1e}", worst
        worst = max(worst, error)
    return None, worst


def usable_backends():
    return [name for name, status in backends().items() if status.available and name != "reference"]


def sweep(strategies, first, count, dtypes=None):
    """Check that many graphs, by default each in one of two dtypes, and return what was tried."""
    tried, worst, names = Counter(), Counter(), usable_backends()
    for number in range(first, first + count):
        problem = strategies.random_problem(number)
        expected = results(problem.plain(), "reference", torch.float64)
        for backend in names:
            for dtype in dtypes or [list(TOLERANCE)[number % 2]]:
                wrong, error = disagreement(problem, backend, dtype, expected)
                assert wrong is None, f"graph {number} on {backend} in {dtype}: {wrong}; {problem.told}"
                worst[backend, dtype] = max(worst[backend, dtype], error)
        tried["graphs"] += 1
        tried[problem.told["kind"]] += 1
        tried["with chunks"] += problem.chunk_size is not None
        tried["with a mask"] += problem.key_mask is not None
        tried["with dropout"] += problem.dropout_p > 0
        tried["with features"] += problem.edge_features is not None
        tried["of one edge"] += problem.layout.num_edges == 1
    return tried, worst


def number_of_graphs(otherwise):
    return int(os.environ.get("PYG_KPNN_SWEEP_FROM", "0")), int(os.environ.get("PYG_KPNN_SWEEP", otherwise))


def report(capsys, tried, worst, seconds):
    with capsys.disabled():
        print(f"\n{seconds:.0f} s, tried: {dict(tried)}")
        for (backend, dtype), error in sorted(worst.items(), key=str):
            print(f"  {backend:8} {dtype}: largest difference {error:.1e}")


def test_random_graphs_agree(strategies):
    tried, _ = sweep(strategies, *number_of_graphs(1_000))
    assert tried["graphs"] < 500 or set(strategies.KINDS) <= set(tried)


@pytest.mark.slow
def test_very_many_random_graphs_agree(strategies, capsys):
    start = time.perf_counter()
    tried, worst = sweep(strategies, *number_of_graphs(100_000), list(TOLERANCE))
    report(capsys, tried, worst, time.perf_counter() - start)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_small_graphs_agree(strategies, dtype):
    # Fewer than in the sweep, and hypothesis makes a failing one smaller.
    @settings(max_examples=60, deadline=None)
    @given(strategies.problems())
    def check(problem):
        expected = results(problem.plain(), "reference", torch.float64)
        for backend in usable_backends():
            wrong, _ = disagreement(problem, backend, dtype, expected)
            assert wrong is None, (backend, wrong)

    check()


def test_the_sweep_sees_a_wrong_edge(strategies, monkeypatch):
    from pyg_kpnn.ops.torch_kernel import TorchKernel

    add_rows = TorchKernel.add_rows

    def forgetful(self, out, rows, layout, side, edges):
        add_rows(self, out, rows.roll(1, -3) if side == "source" else rows, layout, side, edges)

    monkeypatch.setattr(TorchKernel, "add_rows", forgetful)
    with pytest.raises(AssertionError, match=r"graph \d+ on torch"):
        sweep(strategies, 0, 100)
