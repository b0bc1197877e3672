"""The audit itself: one prior, many random graphs, the same budget for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import combinations
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyg_kpnn.auditing.fitting import (
    Factory,
    Fit,
    Score,
    default_model,
    edge_shares,
    fit_adamw,
    metric_name,
    score_default,
    train,
)
from pyg_kpnn.auditing.problem import Problem, make_problem
from pyg_kpnn.auditing.report import AuditReport, NullResult
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph
from pyg_kpnn.prior.align import need_graph
from pyg_kpnn.prior.names import check_choice, name_list, show
from pyg_kpnn.prior.rewire import PRESERVE, count_rewirings, rewire, whole, wiring

__all__ = ["audit"]

#: Rewirings looked at to count wirings, once two of the n were the same.
_COUNTED = 2000


def audit(
    model_factory: Factory | None,
    graph: PriorGraph,
    data: Any,
    *,
    n: int = 99,
    null: str | Sequence[str] = "degree",
    fit: Fit | None = None,
    score: Score | None = None,
    edge_scores: Callable[[nn.Module, Tensor], Tensor] | None = None,
    seed: int = 0,
    level: float = 0.05,
    test_share: float = 0.3,
    standardize: bool = True,
    stability_seeds: int = 3,
    top_edges: int = 50,
    progress: bool = True,
) -> AuditReport:
    """Ask whether a prior graph predicts better than random graphs that resemble it.

    A model is fitted on the prior and on n random graphs of each null, with one split of the samples, one
    budget and one seed, and scored on the samples kept back::

        p = (1 + random graphs that score at least as high) / (1 + n)

    Parameters
    ----------
    model_factory : callable or None
        ``model_factory(graph)`` returns an untrained module. None: a small PriorTransformer.
    graph : PriorGraph
        The prior.
    data : (x, y) or AlignedDataset with labels
        ``x`` is a DataFrame or AnnData, whose columns are found by name, or (samples, units) in the order
        of the graph. ``y`` is one label (text, integer, bool) or floating number a sample, or (samples, K)
        numbers; a DataFrame with a column for every target node is put in order by name. No cell may be
        missing.
    n : int, default 99
        Random graphs of each null.
    null : str or sequence of str, default "degree"
        What they share with the prior: ``preserve`` of :meth:`PriorGraph.rewire`. A graph whose edges all go
        both ways takes ``"labels"`` only.
    fit : callable, optional
        ``fit(model, x_train, y_train, seed)`` trains in place. Default:
        :func:`~pyg_kpnn.auditing.fit_adamw`. Give every graph the same budget; choose nothing by ``x_test``.
    score : callable, optional
        ``score(model, x_test, y_test)`` returns a number, higher is better; the model is in evaluation
        mode. Default: balanced accuracy for labels, R² for numbers (the mean of the columns).
    edge_scores : callable, optional
        ``edge_scores(model, x_test)`` returns (E,) for the stability of the top edges. Default: attention
        over an even share, for models with ``edge_weights`` that are wired by all edges of ``graph``.
    seed : int, default 0
        Of the split, the random graphs and the fits. Global random state stays as it is.
    level : float, default 0.05
        Between 0 and 1.
    test_share : float, default 0.3
        Share of the samples (of each class) kept back.
    standardize : bool, default True
        Columns of ``x``, and numbers to predict, to mean 0 and deviation 1 in the training samples.
    stability_seeds : int, default 3
        Fits of the prior whose top edges are compared; below 2 none.
    top_edges : int, default 50
        How many, and at most a quarter of all edges.
    progress : bool, default True
        Show a bar, where tqdm is installed.

    Returns
    -------
    AuditReport
        ``print`` it; ``to_frame()``, ``to_dict()``, ``plot()``.

    Raises
    ------
    PriorGraphError
        If an argument or the data breaks its rule, a model returns another shape than ``y`` asks for, or
        a score is not finite.

    Notes
    -----
    The n graphs are drawn from a first random graph, not from the prior. If the prior is itself one of the
    random graphs, the n + 1 graphs can then be put in any order without a difference, however well the
    steps between them mix (Besag and Clifford 1989, "Generalized Monte Carlo significance tests"). Equal
    graphs are fitted once. Nothing is written to disk.
    """
    need_graph(graph)
    n, seed = whole("n", n, 1), whole("seed", seed, 0)
    stability_seeds, top_edges = (
        whole("stability_seeds", stability_seeds, 0),
        whole("top_edges", top_edges, 1),
    )
    level, test_share = _fraction("level", level), _fraction("test_share", test_share)
    nulls = _null_names(null)
    _check_directed(graph, nulls)
    for what, given in (
        ("model_factory", model_factory),
        ("fit", fit),
        ("score", score),
        ("edge_scores", edge_scores),
    ):
        if given is not None and not callable(given):
            raise PriorGraphError(f"{what!r} must be callable. Got {show(given)} ({type(given).__name__}).")
    problem = make_problem(graph, data, test_share, standardize, seed)
    factory = default_model(problem) if model_factory is None else model_factory
    how = (problem, fit or fit_adamw, score or score_default)
    fits = _progress(max(stability_seeds, 1) + n * len(nulls), progress)
    with fits:
        model, value = train(factory, graph, *how, seed, "the prior")
        fits.update()
        shares = [_shares(model, graph, problem, edge_scores)] if stability_seeds > 1 else [None]
        if shares[0] is not None:
            for extra in range(1, stability_seeds):
                model, _ = train(factory, graph, *how, seed + extra, "the prior")
                fits.update()
                shares.append(_shares(model, graph, problem, edge_scores))
        known = {graph.fingerprint: value}
        results = []
        for name in nulls:
            scores = []
            seen = {wiring(graph)}
            for place, drawn in enumerate(_draws(graph, name, n, seed)):
                seen.add(wiring(drawn))
                if drawn.fingerprint not in known:
                    what = f"random graph {place} ({name})"
                    known[drawn.fingerprint] = train(factory, drawn, *how, seed, what)[1]
                scores.append(known[drawn.fingerprint])
                fits.update()
            distinct = len(seen)
            if distinct < n + 1:  # there are few, or it is a coincidence: more draws tell
                distinct = max(distinct, count_rewirings(graph, name, _COUNTED, seed))
            results.append(NullResult(name, value, tuple(scores), distinct, level))
    return AuditReport(
        nulls=tuple(results),
        score=value,
        metric=metric_name(problem) if score is None else getattr(score, "__name__", "score"),
        graph=graph.fingerprint,
        train_samples=len(problem.x_train),
        test_samples=len(problem.x_test),
        seed=seed,
        **_stability(graph, [s for s in shares if s is not None], top_edges),
    )


def _null_names(null: Any) -> list[str]:
    names = [null] if isinstance(null, str) else name_list(null, "null", of="nulls")
    for name in names:
        check_choice(name, PRESERVE, "null")
    if not names or len(set(names)) < len(names):
        raise PriorGraphError(f"'null' must be one or several different nulls. Got {show(null)}.")
    return names


def _check_directed(graph: PriorGraph, nulls: list[str]) -> None:
    """Refuse a prior that no random graph is like: all its edges go both ways."""
    away = [name for name in nulls if name != "labels"]
    loops = graph._source == graph._target
    if not away or graph.is_bipartite or loops.all() or graph.to_undirected().num_edges > graph.num_edges:
        return
    raise PriorGraphError(
        f"Graphs of the null {away[0]!r} must be like the prior. Got a prior whose {graph.num_edges} edges "
        "all go both ways, which theirs do not. Pass null='labels', or the graph in one direction and a "
        "model_factory (in Python) that takes graph.to_undirected()."
    )


def _fraction(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 < float(value) < 1.0:
        raise PriorGraphError(f"{what!r} must be a number between 0 and 1. Got {show(value)}.")
    return float(value)


def _draws(graph: PriorGraph, null: str, n: int, seed: int) -> Iterator[PriorGraph]:
    """n random graphs, each drawn from one and the same random graph; a null's do not depend on others."""
    first, *seeds = (
        np.random.default_rng([seed, 2 + PRESERVE.index(null)]).integers(2**63, size=n + 1).tolist()
    )
    hub = rewire(graph, first, preserve=null)
    for one in seeds:
        yield rewire(hub, one, preserve=null)


def _shares(
    model: nn.Module, graph: PriorGraph, problem: Problem, edge_scores: Callable[..., Any] | None
) -> Tensor | None:
    """Score (E,) of every edge in a fitted model, or None where the model has none."""
    if edge_scores is None:
        return edge_shares(model, graph, problem.x_test)
    with torch.no_grad():
        found = torch.as_tensor(edge_scores(model, problem.x_test)).detach().cpu()
    if found.shape != (graph.num_edges,):
        raise PriorGraphError(
            f"'edge_scores' must return one number for each of the {graph.num_edges} edges. Got shape "
            f"{tuple(found.shape)}."
        )
    return found


def _stability(graph: PriorGraph, shares: list[Tensor], top: int) -> dict[str, Any]:
    """Agreement of the top edges of several fits."""
    if len(shares) < 2:
        return {}
    edges = graph.num_edges
    k = min(top, max(edges // 4, 1))
    tops = [set(share.topk(k).indices.tolist()) for share in shares]
    overlaps = [len(one & other) / len(one | other) for one, other in combinations(tops, 2)]
    counts = {edge: sum(edge in found for found in tops) for edge in set().union(*tops)}
    order = sorted(counts, key=lambda edge: (-counts[edge], edge))
    common = k * k / edges  # expected by chance
    return {
        "stability": math.fsum(overlaps) / len(overlaps),
        "chance": common / (2 * k - common),
        "top_k": k,
        "top_edges": tuple((*graph.edges[edge], counts[edge]) for edge in order),
    }


class _Quiet:
    """Stands in for a progress bar."""

    def __enter__(self) -> _Quiet:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def update(self) -> None:
        return None


def _progress(total: int, shown: bool) -> Any:
    if not shown:
        return _Quiet()
    try:
        tqdm: Any = import_module("tqdm").tqdm
    except ImportError:
        return _Quiet()
    return tqdm(total=total, desc="Audit", unit="fit")
