"""The audit as a procedure: what is the same for all graphs, how the numbers come about, what is refused."""

from __future__ import annotations

import json
import random
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, r2_score
from torch import nn

from pyg_kpnn import PriorGraph, PriorTransformer
from pyg_kpnn.auditing import NullResult, audit, fit_adamw
from pyg_kpnn.auditing.fitting import edge_shares, score_default
from pyg_kpnn.auditing.problem import make_problem
from pyg_kpnn.datasets import curated_graph, from_frame
from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.rewire import edge_overlap, rewire

TRUTH = PriorGraph.from_edges(
    [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f"), ("f", "a"), ("a", "d")]
)
QUICK = dict(progress=False, stability_seeds=0)


class Wire(nn.Module):
    """Knows its graph and nothing else."""

    def __init__(self, graph: PriorGraph) -> None:
        super().__init__()
        self.graph = graph
        self.start = nn.Parameter(torch.randn(3))


def no_fit(model, x, y, seed):
    pass


def overlap(model, x, y):
    return edge_overlap(model.graph, TRUTH)


def samples(rows: int = 20, columns: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return (
        torch.from_numpy(rng.normal(size=(rows, columns))).float(),
        torch.from_numpy(rng.normal(size=rows)).float(),
    )


# --- the test ----------------------------------------------------------------------------------------


def test_a_prior_that_scores_best_has_the_smallest_p():
    report = audit(Wire, TRUTH, samples(), n=39, fit=no_fit, score=overlap, **QUICK)
    scores = report.null_scores
    assert (report.score, len(scores), report.metric) == (1.0, 39, "overlap")
    assert report.p_value == (1 + sum(score == 1.0 for score in scores)) / 40
    assert report.effect == pytest.approx((1.0 - np.mean(scores)) / np.std(scores, ddof=1))
    assert report.smallest_p == 1 / 40
    assert report.decided
    assert report.helps
    assert "better than these graphs" in str(report)


def test_a_prior_that_scores_worst_has_p_one():
    report = audit(Wire, TRUTH, samples(), n=19, fit=no_fit, score=lambda m, x, y: -overlap(m, x, y), **QUICK)
    assert report.p_value == 1.0
    assert not report.helps
    assert report.decided
    assert "no better than these graphs" in str(report)


def test_ties_count_against_the_prior():
    report = audit(Wire, TRUTH, samples(), n=19, fit=no_fit, score=lambda *_: 0.5, **QUICK)
    assert report.p_value == 1.0
    assert np.isnan(report.effect)
    assert report["degree"].to_dict()["effect"] is None


def test_every_graph_gets_the_same_samples_seed_and_start():
    calls, scored = [], []

    def fit(model, x, y, seed):
        calls.append((model.graph, model.start.tolist(), torch.rand(2).tolist(), x, y, seed, model.training))

    def score(model, x, y):
        scored.append((x, y, model.training, torch.is_grad_enabled()))
        return 0.0

    audit(Wire, TRUTH, samples(), n=4, fit=fit, score=score, seed=5, **QUICK)
    assert len({graph for graph, *_ in calls}) == 5
    assert calls[0][0] == TRUTH
    assert all(graph.nodes == TRUTH.nodes for graph, *_ in calls)
    for one in calls[1:]:
        assert one[1:3] == calls[0][1:3]
        assert torch.equal(one[3], calls[0][3])
        assert torch.equal(one[4], calls[0][4])
    assert {one[5:] for one in calls} == {(5, True)}
    assert all(torch.equal(x, scored[0][0]) and torch.equal(y, scored[0][1]) for x, y, *_ in scored)
    assert {one[2:] for one in scored} == {(False, False)}
    assert len(calls[0][3]) + len(scored[0][0]) == 20


def test_equal_graphs_are_fitted_once():
    fitted = []
    cycle = PriorGraph.from_edges([("a", "b"), ("b", "c"), ("c", "a")])
    report = audit(
        Wire,
        cycle,
        samples(columns=3),
        n=30,
        fit=lambda model, *_: fitted.append(model.graph),
        score=lambda model, x, y: float(model.graph == cycle),
        **QUICK,
    )
    assert len(fitted) == len(set(fitted)) == report.distinct == 2
    assert set(report.null_scores) == {0.0, 1.0}
    # drawn from a random graph, both ways round come up about as often
    assert 5 < sum(report.null_scores) < 25


def test_draws_start_from_a_random_graph():
    seen = []
    audit(
        Wire,
        TRUTH,
        samples(),
        n=3,
        null="labels",
        fit=lambda m, *_: seen.append(m.graph),
        score=overlap,
        **QUICK,
    )
    rng = np.random.default_rng([0, 2 + 3])
    first, *seeds = rng.integers(2**63, size=4).tolist()
    hub = rewire(TRUTH, first, preserve="labels")
    assert seen[1:] == [rewire(hub, seed, preserve="labels") for seed in seeds]


def test_several_nulls_at_once_are_those_of_one_at_a_time():
    together = audit(
        Wire, TRUTH, samples(), n=9, null=["labels", "degree"], fit=no_fit, score=overlap, **QUICK
    )
    alone = audit(Wire, TRUTH, samples(), n=9, null="degree", fit=no_fit, score=overlap, **QUICK)
    assert [result.null for result in together.nulls] == ["labels", "degree"]
    assert together["degree"] == alone["degree"]
    assert together.p_value == together["labels"].p_value
    with pytest.raises(
        PriorGraphError, match=r"A null must be one the audit was made with\. Got 'sign', not 'la"
    ):
        together["sign"]


def test_few_draws_and_few_graphs_stay_undecided():
    few = audit(Wire, TRUTH, samples(), n=9, fit=no_fit, score=overlap, **QUICK)
    assert not few.decided
    assert not few.helps
    assert few["degree"].reason.endswith("above the level 0.05: 9 draws are too few, take n=19")
    assert audit(Wire, TRUTH, samples(), n=19, fit=no_fit, score=overlap, **QUICK).decided
    assert audit(Wire, TRUTH, samples(), n=9, level=0.1, fit=no_fit, score=overlap, **QUICK).decided


def test_the_dense_curated_network_stays_undecided():
    graph = curated_graph("mcad")
    report = audit(
        Wire,
        graph,
        samples(columns=5),
        n=99,
        fit=no_fit,
        score=lambda m, x, y: edge_overlap(m.graph, graph),
        **QUICK,
    )
    assert (report.distinct, report.smallest_p) == (5, 0.2)
    assert not report.decided
    assert not report.helps
    assert "not decided" in str(report)
    assert "5 different wirings were seen, the prior's among them" in report["degree"].reason
    # permuted names are another question, with an answer
    assert audit(
        Wire, graph, samples(columns=5), n=99, null="labels", fit=no_fit, score=lambda *_: 0, **QUICK
    ).decided


def test_a_small_p_among_few_graphs_decides_nothing():
    # five graphs, and by luck the prior was not drawn again
    result = NullResult("degree", 1.0, (0.25, 0.75) * 49 + (0.5,), distinct=5, level=0.05)
    assert (result.p_value, result.smallest_p) == (0.01, 0.2)
    assert (result.decided, result.helps) == (False, False)
    assert result.effect == pytest.approx(0.5 / (0.25 * 1.0))  # 98 squares of 0.25 over n - 1 = 98
    enough = NullResult("degree", 1.0, result.scores, distinct=20, level=0.05)
    assert (enough.decided, enough.helps, enough.reason) == (True, True, None)


def test_a_chance_repeat_does_not_make_few_graphs():
    # 48 wirings: among 30 draws some are the same, more draws show that there are enough
    graph = PriorGraph.from_edges([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "a")])
    report = audit(Wire, graph, samples(columns=5), n=30, fit=no_fit, score=overlap_of(graph), **QUICK)
    assert len(set(report.null_scores)) < 30
    assert report.distinct == 48
    assert report.smallest_p == 1 / 31


def overlap_of(graph):
    return lambda model, x, y: edge_overlap(model.graph, graph)


def test_nothing_outside_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def stop(model, x, y, seed):
        torch.rand(3)
        stop.left -= 1
        if not stop.left:
            raise KeyboardInterrupt

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    audit(None, TRUTH, samples(), n=1, fit=lambda m, *a: fit_adamw(m, *a, steps=1), **QUICK)
    stop.left = 3
    with pytest.raises(KeyboardInterrupt):
        audit(Wire, TRUTH, samples(), n=9, fit=stop, score=overlap, progress=True, stability_seeds=0)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    assert not list(tmp_path.iterdir())


def test_progress(monkeypatch, capsys):
    bars = []

    class Bar:
        def __init__(self, **kwargs):
            self.total, self.done = kwargs["total"], 0
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def update(self):
            self.done += 1

    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=Bar))
    how = dict(n=4, null=["degree", "density"], fit=no_fit, score=overlap)
    audit(Wire, TRUTH, samples(), **how, stability_seeds=0, progress=True)
    assert (bars[0].total, bars[0].done) == (9, 9)
    audit(Wire, TRUTH, samples(), **how, **QUICK)
    assert len(bars) == 1
    monkeypatch.setitem(sys.modules, "tqdm", None)
    audit(Wire, TRUTH, samples(), **how, stability_seeds=0)
    assert capsys.readouterr() == ("", "")


# --- data --------------------------------------------------------------------------------------------


def test_columns_are_found_by_name():
    graph = PriorGraph.from_edges([("a", "b"), ("b", "c")], widths={"b": 2})
    x = np.arange(30.0).reshape(10, 3)
    frame = pd.DataFrame({"c": x[:, 2], "age": 1.0, "a": x[:, 0], "b": x[:, 1]})
    y = pd.DataFrame({"b": -x[:, 1], "c": -x[:, 2], "a": -x[:, 0]})
    by_name = make_problem(graph, (frame, y), 0.3, False, 0)
    by_place = make_problem(graph, (x[:, [0, 1, 1, 2]], -x[:, [0, 1, 1, 2]]), 0.3, False, 0)
    for part in ("x_train", "x_test", "y_train", "y_test"):
        assert torch.equal(getattr(by_name, part), getattr(by_place, part))
    assert torch.equal(by_name.y_test, -by_name.x_test)
    assert (by_name.kind, by_name.num_outputs, len(by_name.x_test)) == ("node", 4, 3)


def test_anndata_and_aligned_datasets():
    graph = PriorGraph.from_edges([("a", "b")])
    frame = pd.DataFrame({"b": np.arange(8.0), "a": 10 + np.arange(8.0), "kind": list("uvuvuvuv")})
    want = make_problem(graph, (frame[["a", "b"]], frame["kind"]), 0.25, True, 0)
    aligned = make_problem(graph, from_frame(frame, graph, label="kind"), 0.25, True, 0)
    anndata = pytest.importorskip("anndata")
    cells = anndata.AnnData(frame[["b", "a"]].set_axis(list("01234567")))
    for other in (aligned, make_problem(graph, (cells, frame["kind"]), 0.25, True, 0)):
        assert torch.equal(other.x_train, want.x_train)
        assert torch.equal(other.y_test, want.y_test)
    with pytest.raises(PriorGraphError, match="dataset must have the nodes of the graph"):
        make_problem(TRUTH, from_frame(frame, graph, label="kind"), 0.25, True, 0)
    with pytest.raises(PriorGraphError, match="Got AlignedDataset without labels"):
        make_problem(graph, from_frame(frame[["a", "b"]], graph), 0.25, True, 0)


def test_split_keeps_classes_and_scale_comes_from_the_training_samples():
    graph = PriorGraph.from_edges([("a", "b"), ("b", "c")])
    x, _ = samples(50, 3)
    x[:, 2] = 4.0
    labels = ["rare"] * 5 + ["common"] * 45
    problem = make_problem(graph, (x * 3 + 1, labels), 0.3, True, 0)
    assert (problem.kind, problem.num_outputs) == ("class", 2)
    assert problem.y_test.bincount().tolist() == [14, 2]  # round(13.5), round(1.5): common comes first
    assert problem.y_train.bincount().tolist() == [31, 3]
    assert torch.allclose(problem.x_train[:, :2].mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(problem.x_train[:, :2].std(0, correction=0), torch.ones(2), atol=1e-6)
    assert problem.x_test[:, 2].tolist() == [0.0] * 16
    assert problem.x_test[:, :2].mean().abs() > 1e-3
    again = make_problem(graph, (x * 3 + 1, labels), 0.3, True, 0)
    other = make_problem(graph, (x * 3 + 1, labels), 0.3, True, 1)
    assert torch.equal(problem.x_test, again.x_test)
    assert not torch.equal(problem.x_test, other.x_test)
    numbers = make_problem(graph, (x, x[:, 0] * 7 + 2), 0.3, True, 0)
    assert torch.allclose(numbers.y_train, numbers.x_train[:, 0], atol=1e-5)
    assert torch.allclose(numbers.y_test, numbers.x_test[:, 0], atol=1e-5)


@pytest.mark.parametrize("labels", [list("yxyxyx"), [5, 2, 5, 2, 5, 2], np.array([1, 0] * 3, dtype=bool)])
def test_labels_of_any_kind_are_classes_in_order(labels):
    problem = make_problem(PriorGraph.from_edges([("a", "b")]), (torch.rand(6, 2), labels), 0.4, True, 0)
    rest = torch.cat([problem.y_train, problem.y_test])
    assert sorted(rest.tolist()) == [0, 0, 0, 1, 1, 1]
    assert problem.kind == "class"


# --- defaults ----------------------------------------------------------------------------------------


def test_default_scores_against_sklearn():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(1500, 3)), rng.choice(3, 1500, p=[0.7, 0.2, 0.1])
    want = balanced_accuracy_score(labels, logits.argmax(1))
    x, y = torch.from_numpy(logits), torch.from_numpy(labels)
    assert score_default(nn.Identity(), x, y) == pytest.approx(want)
    true, guess = rng.normal(size=(40, 3)), rng.normal(size=(40, 3))
    true[:, 1] += guess[:, 1] * 3
    got = score_default(nn.Identity(), torch.from_numpy(guess), torch.from_numpy(true))
    assert got == pytest.approx(r2_score(true, guess))
    got = score_default(nn.Flatten(0), torch.from_numpy(guess[:, :1]), torch.from_numpy(true[:, 0]))
    assert got == pytest.approx(r2_score(true[:, 0], guess[:, 0]))
    true[:, 2] = 1.0  # a column that does not vary has no R²
    got = score_default(nn.Identity(), torch.from_numpy(guess), torch.from_numpy(true))
    assert got == pytest.approx(r2_score(true[:, :2], guess[:, :2]))


@pytest.mark.parametrize("y", ["class", "graph", "node"])
def test_default_model_and_fit_learn(y):
    x, _ = samples(80)
    target = {"class": (x[:, 0] > 0).long(), "graph": x[:, 0] * 2 + 1, "node": x[:, [5, 0, 1, 2, 3, 4]]}[y]
    report = audit(None, TRUTH, (x, target), n=1, **QUICK)
    assert report.score > 0.4
    assert report.metric == {"class": "balanced accuracy", "graph": "R²", "node": "mean R² of the columns"}[y]
    again = audit(None, TRUTH, (x, target), n=1, **QUICK)
    assert again == report


def test_attention_over_an_even_share():
    graph = PriorGraph.from_edges([("a", "a"), ("a", "b"), ("c", "b"), ("b", "c")], widths={"b": 2})
    model = PriorTransformer(graph, embed_dim=8, num_heads=2)
    assert edge_shares(nn.Identity(), graph, torch.randn(5, 4)) is None
    x = torch.randn(5, 4)
    uneven = edge_shares(model, graph, x)
    weights = [layer.detach().double().mean((0, 2)).numpy() for layer in model.edge_weights(x)]
    source, target = (
        getattr(model.layers[0].attention, f"{end}_index").tolist() for end in ("source", "target")
    )
    owner = ["a", "b", "b", "c"]
    for edge, (s, t) in enumerate(graph.edges):
        pairs = [i for i in range(graph.nnz) if (owner[source[i]], owner[target[i]]) == (s, t)]
        want = np.mean([layer[i] * target.count(target[i]) for layer in weights for i in pairs])
        assert uneven[edge].item() == pytest.approx(want)
    for layer in model.layers:
        nn.init.zeros_(layer.attention.q_proj.weight)
    assert torch.allclose(edge_shares(model, graph, torch.randn(5, 4)), torch.ones(4, dtype=torch.float64))


def test_attention_of_a_model_with_more_edges_is_named_right():
    graph = PriorGraph.from_edges([("b", "a"), ("c", "b")])
    model = PriorTransformer(graph.to_undirected(), embed_dim=8, num_heads=2)
    x = torch.randn(5, 3)
    every = edge_shares(model, model.graph, x)
    assert model.graph.edges == (("a", "b"), ("b", "a"), ("b", "c"), ("c", "b"))
    assert edge_shares(model, graph, x).tolist() == every[[1, 3]].tolist()
    for other in ([("b", "a"), ("c", "a")], [("b", "a"), ("c", "d")]):
        assert edge_shares(model, PriorGraph.from_edges(other), x) is None


def test_a_prior_of_edges_both_ways_is_refused_but_for_labels():
    x = samples(40)[0]
    y = (x[:, 0] > 0).long()
    both = TRUTH.to_undirected()
    for null in ("degree", ["labels", "density"]):
        with pytest.raises(PriorGraphError, match=r"null '(degree|density)' must be like the prior\. Got"):
            audit(None, both, (x, y), n=1, null=null, **QUICK)
    assert audit(None, both, (x, y), n=1, null="labels", **QUICK).nulls[0].null == "labels"

    def factory(graph):
        return PriorTransformer(
            graph.to_undirected(), embed_dim=8, num_heads=2, readout="class", num_classes=2
        )

    report = audit(factory, TRUTH, (x, y), n=1, progress=False, stability_seeds=2)
    assert report.top_edges
    assert {(s, t) for s, t, _ in report.top_edges} <= set(TRUTH.edges)


def test_stability_by_hand():
    # seven edges; the top one of two seeds is the same, of the third another
    tops = iter([[0, 1], [1, 0], [2, 3]])

    def edge_scores(model, x):
        score = torch.zeros(8)
        score[next(tops)] = 1.0
        return score

    graph = PriorGraph.from_edges([*TRUTH.edges, ("d", "b")])
    seeds = []
    report = audit(
        Wire,
        graph,
        samples(),
        n=1,
        fit=lambda m, x, y, seed: seeds.append(seed),
        score=overlap,
        edge_scores=edge_scores,
        stability_seeds=3,
        seed=4,
        progress=False,
    )
    assert seeds == [4, 5, 6, 4]
    assert (report.top_k, report.stability) == (2, pytest.approx((1 + 0 + 0) / 3))
    assert report.chance == pytest.approx(0.5 / 3.5)  # 2 * 2 / 8 in common
    first, second, third, fourth = graph.edges[:4]
    assert report.top_edges == ((*first, 2), (*second, 2), (*third, 1), (*fourth, 1))
    assert "Jaccard 0.33 (by chance 0.14)" in str(report)
    assert audit(Wire, graph, samples(), n=1, fit=no_fit, score=overlap, progress=False).stability is None


# --- the report --------------------------------------------------------------------------------------


def test_frame_and_dict():
    report = audit(Wire, TRUTH, samples(), n=9, null=["degree", "labels"], fit=no_fit, score=overlap, **QUICK)
    payload = json.loads(json.dumps(report.to_dict()))
    assert payload["nulls"][0]["scores"] == list(report.null_scores)
    assert payload["graph"] == TRUTH.fingerprint
    assert (payload["train_samples"], payload["test_samples"]) == (14, 6)
    frame = report.to_frame()
    assert frame["null"].tolist() == ["degree", "labels"]
    assert frame["p_value"].tolist() == [result.p_value for result in report.nulls]
    assert frame["decided"].tolist() == [False, False]
    one = audit(Wire, TRUTH, samples(), n=1, fit=no_fit, score=overlap, **QUICK)
    assert np.isnan(one.to_frame()["deviation"][0])
    assert json.loads(json.dumps(one.to_dict(), allow_nan=False))["nulls"][0]["deviation"] is None


def test_plot(monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    report = audit(
        Wire, TRUTH, samples(), n=19, null=["degree", "labels"], fit=no_fit, score=overlap, **QUICK
    )
    ax = report.plot()
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert words == [*(f"{r.null}, p = {r.p_value:.3g}" for r in report.nulls), "prior, 1.000"]
    assert ax.lines[0].get_xdata()[0] == report.score
    assert ax.get_xlabel() == "overlap"
    single = audit(Wire, TRUTH, samples(), n=9, fit=no_fit, score=lambda *_: 0.5, **QUICK)
    given = Figure().subplots()
    assert single.plot(given) is given
    assert sum(bar.get_height() for bar in given.patches) == 9
    assert [text.get_text() for text in given.get_legend().get_texts()] == [
        "degree, not decided",
        "prior, 0.500",
    ]
    given.figure.canvas.draw()
    with pytest.raises(PriorGraphError, match=r"'ax' must be matplotlib axes\. Got 3"):
        report.plot(3)
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    with pytest.raises(ImportError, match=r"pyg_kpnn\[plot\]"):
        report.plot()


# --- refused -----------------------------------------------------------------------------------------

X, Y = samples()
HOLE = X.clone()
HOLE[3, 1] = float("nan")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(graph="g"), "'graph' must be a PriorGraph. Got str."),
        (dict(n=0), "'n' must be an int of at least 1. Got 0 (int)."),
        (dict(seed=-1), "'seed' must be an int of at least 0. Got -1 (int)."),
        (dict(top_edges=0), "'top_edges' must be an int of at least 1."),
        (dict(stability_seeds=1.5), "'stability_seeds' must be an int of at least 0."),
        (dict(level=1), "'level' must be a number between 0 and 1. Got 1."),
        (dict(test_share="half"), "'test_share' must be a number between 0 and 1. Got 'half'."),
        (dict(null="degrees"), "'null' must be 'degree', 'sign', 'component', 'labels' or 'density'."),
        (dict(null=["degree", "degree"]), "'null' must be one or several different nulls."),
        (dict(null=[]), "'null' must be one or several different nulls. Got []."),
        (dict(null=3), "'null' must be a sequence of nulls. Got 3 (int)."),
        (dict(model_factory=3), "'model_factory' must be callable. Got 3 (int)."),
        (dict(fit="adam"), "'fit' must be callable. Got 'adam' (str)."),
        (dict(score=0.5), "'score' must be callable. Got 0.5 (float)."),
        (dict(edge_scores=1), "'edge_scores' must be callable. Got 1 (int)."),
        (dict(model_factory=lambda g: g), "'model_factory' must return an nn.Module. Got PriorGraph("),
        (
            dict(score=lambda *_: float("nan")),
            "must be a finite number, higher is better. Got nan on the prior.",
        ),
        (dict(score=lambda *_: "good"), "Got 'good' on the prior."),
        (
            dict(score=lambda m, x, y: 1.0 if m.graph == TRUTH else None),
            "Got None on random graph 0 (degree).",
        ),
        (
            dict(edge_scores=lambda m, x: torch.ones(3), stability_seeds=2),
            "'edge_scores' must return one number for each of the 7 edges. Got shape (3,).",
        ),
        (dict(data=X), "'data' must be a pair (x, y) or a dataset with labels"),
        (dict(data=(X[:, :5], Y)), "'x' must be (samples, 6), one column a unit"),
        (dict(data=(X[:3], Y[:3])), "at least 4 samples. Got shape (3, 6)."),
        (dict(data=([["u"] * 6] * 9, Y[:9])), "'x' must hold numbers."),
        (dict(data=(HOLE, Y)), "'x' must be finite. Got nan for 'b' in sample 3."),
        (
            dict(data=(X, torch.stack([HOLE[:, 1]] * 6, 1))),
            "'y' must be finite. Got nan for 'a' in sample 3.",
        ),
        (dict(data=(X, HOLE[:, 1])), "'y' must be finite. Got nan in sample 3."),
        (dict(data=(X, Y[:7])), "'y' must have one row for each of the 20 samples"),
        (dict(data=(X, Y.reshape(20, 1, 1))), "in one dimension or two. Got shape (20, 1, 1)."),
        (dict(data=(X, ["u"] * 20)), "There must be two classes or more, each of 2 samples or more. Got 1"),
        (dict(data=(X, ["u"] * 19 + ["v"])), "Got 2 of 19, 1 samples."),
        (dict(data=(X, ["u"] * 10 + ["v"] * 9 + [None])), "must have a label. Got none for sample 19."),
        (dict(data=(X, np.array([["u", "v"]] * 20))), "'y' must hold numbers or one label a sample."),
        (
            dict(data=(pd.DataFrame(X.numpy(), columns=list("abcdeg")), Y)),
            "Got no column for 1 of 6 nodes: 'f'",
        ),
        (dict(model_factory=None, data=(X, X[:, :2])), "one column a unit, 6, for the default model. Got 2."),
        (
            dict(model_factory=lambda g: nn.Linear(6, 1), fit=None, score=None),
            "The model must return what y is shaped like, (14,). Got shape (14, 1).",
        ),
        (
            dict(
                model_factory=lambda g: nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)),
                data=(X, [0, 1] * 10),
                fit=None,
            ),
            "The model must return logits (14, classes). Got shape (14,).",
        ),
    ],
)
def test_refused(change, words):
    given = dict(model_factory=Wire, graph=TRUTH, data=(X, Y), fit=no_fit, score=overlap, n=2, **QUICK)
    with pytest.raises(PriorGraphError) as caught:
        audit(**{**given, **change})
    assert words in str(caught.value)
