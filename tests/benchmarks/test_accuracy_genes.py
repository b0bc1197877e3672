"""The regulatory tasks of benchmarks/accuracy.py: splits, models, rankings of edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pyg_kpnn import PriorGraph, PriorTransformer

# Tables of genes


def test_the_test_part_is_the_same_for_every_seed(part: Any) -> None:
    genes = part("accuracy_genes")
    table = genes.made_up()
    first, second = genes.split(table, 0), genes.split(table, 1)
    assert torch.equal(first.test, second.test)
    assert not torch.equal(first.validation, second.validation)
    for found in (first, second):
        assert torch.cat(found).sort()[0].tolist() == list(range(240))
        # of the 80 of a class, 16 are tested and 13 of the other 64 choose the epoch
        assert [torch.bincount(table.labels[places]).tolist() for places in found] == [
            [51] * 3,
            [13] * 3,
            [16] * 3,
        ]


def test_values_are_standardised_by_the_training_part(part: Any) -> None:
    x = torch.tensor([[1.0, 5.0], [3.0, 5.0], [100.0, 6.0]])
    got = part("accuracy_genes").standardised(x, torch.tensor([0, 1]))
    torch.testing.assert_close(got[:, 0], (x[:, 0] - 2.0) / 2.0**0.5)
    assert got[:, 1].tolist() == [0.0, 0.0, 0.0]


def test_real_files_are_only_read(part: Any, data_dir: Path, tmp_path: Path) -> None:
    genes, jobs = part("accuracy_genes"), part("accuracy_jobs")
    sizes = {"HSC": (2000, 11, 5), "THP1": (960, 45, 8), "SERGIO": (900, 100, 3), "DREAM4 10": (136, 10, 5)}
    folders = jobs.Folders(data_dir, tmp_path)
    for dataset, (samples, nodes, classes) in sizes.items():
        assert genes.prepare(dataset, folders) is None
        table = genes.load(dataset, folders)
        assert (*table.x.shape, table.classes) == (samples, nodes, classes)
        assert table.graph.state_dim == nodes
    assert int(table.in_series.sum()) == 105
    assert torch.bincount(table.perturbed[table.perturbed >= 0]).tolist() == [2] * 10
    assert genes.prepare("HSC", jobs.Folders(tmp_path / "none", tmp_path)) is not None


# Models of the regulatory tasks


def test_a_hidden_value_reaches_no_model(part: Any) -> None:
    models = part("accuracy_models")
    genes = part("accuracy_genes").made_up()
    x, hidden = genes.x[:4], torch.rand(4, 8).argsort(1) < 3
    for name, build in models.MODELS.items():
        torch.manual_seed(0)
        model = build(genes.graph, None, 0.1).eval()
        out = model(x, hidden)
        assert out.shape == x.shape, name
        torch.testing.assert_close(model(torch.where(hidden, 7.0, x), hidden), out, msg=name)
        assert not torch.allclose(model(torch.where(hidden, x, 7.0), hidden), out), name
        classes = build(genes.graph, 3, 0.1)
        assert classes(x).shape == (4, 3), name


def test_kpnn2_in_our_model_is_our_model(part: Any) -> None:
    models = part("accuracy_models")
    genes = part("accuracy_genes").made_up()
    ours = models.MODELS["ours"](genes.graph, None, 0.0)
    assert isinstance(ours, PriorTransformer)
    theirs = models.MODELS["kpnn2"](genes.graph, None, 0.0)
    state = {name.replace("attention.layer.", "attention."): name for name in theirs.state_dict()}
    known = ours.state_dict()
    theirs.load_state_dict({state[name]: known[name] for name in state if name in known}, strict=False)
    hidden = torch.rand(5, 8) < 0.3
    torch.testing.assert_close(theirs(genes.x[:5], hidden), ours(genes.x[:5], hidden), atol=1e-5, rtol=1e-4)


def test_a_primed_network_follows_the_prior(part: Any) -> None:
    models = part("accuracy_models")
    graph = PriorGraph.from_edges([("a", "b"), ("b", "c"), ("c", "d")])
    model = models.Primed(graph, None, 0.0).eval()
    reach = torch.func.jacrev(lambda x: model(x.unsqueeze(0))[0])(torch.randn(4))
    # target d, of two layers, is told by itself, c and b
    expected = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]])
    assert torch.equal((reach != 0).long(), expected)
    weights = 2 * (4 + 3) * models.CHANNELS**2  # two layers, four loops and three edges
    others = 2 * 4 * models.CHANNELS + 2 * 4 * models.CHANNELS + 4 * models.CHANNELS + 4
    assert models.size(model) == weights + others


def test_as_many_genes_are_hidden_in_every_sample(part: Any) -> None:
    hide = part("accuracy_fits").hide
    assert hide(torch.zeros(6, 20)).sum(1).tolist() == [4] * 6
    assert hide(torch.zeros(6, 2)).sum(1).tolist() == [1] * 6


# Edges


@pytest.fixture
def told() -> Tensor:
    """Samples in which ``b`` is ``a`` with noise, and ``c`` goes its own way."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=random)
    x[:, 1] = x[:, 0] + 0.1 * x[:, 1]
    return (x - x.mean(0)) / x.std(0)


def test_a_gene_does_not_see_itself(part: Any) -> None:
    recovery = part("accuracy_recovery")
    graph = recovery.complete("abc")
    assert graph.num_edges == 6
    model = recovery.EachFromOthers(graph, 8, 2, 0.0)
    nn.init.normal_(model.readout)
    x = torch.randn(5, 3)
    whole = torch.func.vmap(torch.func.jacrev(lambda one: model(one.unsqueeze(0))[0]))(x)
    assert whole.diagonal(dim1=1, dim2=2).abs().max() == 0
    np.testing.assert_allclose(
        recovery.derivatives(model, x), whole.abs().mean(0).detach().numpy(), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(recovery.attention(model.eval(), x).sum(1), 1.0, rtol=1e-5)  # of a target
    with torch.no_grad():
        moved = x.clone()
        moved[:, 0] = 0.0
        change = (model(moved) - model(x)).abs().mean(0)
    np.testing.assert_allclose(recovery.knockouts(model, x)[:, 0], change.numpy(), rtol=1e-4, atol=1e-6)


def test_every_way_of_ranking_finds_who_tells_whom(part: Any, told: Tensor) -> None:
    recovery = part("accuracy_recovery")
    counts = torch.ones(told.shape, dtype=torch.bool)
    config = {**recovery.grid("ours", True)[0], "steps": 150}
    torch.manual_seed(0)
    model = recovery.train(recovery.complete("abc"), told, counts, config)
    found = [ask(model, told) for ask in (recovery.derivatives, recovery.attention, recovery.knockouts)]
    found.append(recovery.forests(told, counts, 0, {"trees": 20}))
    for scores in map(recovery.compared, found):
        np.testing.assert_allclose(scores.sum(1), 1.0)
        assert scores[1, 0] > scores[1, 2]  # target b: a rather than c
        assert scores[0, 1] > scores[0, 2]


def test_what_does_not_count_is_not_learnt_and_what_is_hidden_not_used(part: Any, told: Tensor) -> None:
    recovery = part("accuracy_recovery")
    counts = torch.ones(told.shape, dtype=torch.bool)
    counts[:, 1] = False
    config = {**recovery.grid("ours", True)[0], "steps": 3}
    model = recovery.train(recovery.complete("abc"), told, counts, config)
    assert (model.readout != 0).any(1).tolist() == [True, False, True]
    torch.manual_seed(0)
    first = recovery.EachFromOthers(recovery.complete("abc"), config["width"], config["heads"], 0.0)
    torch.manual_seed(0)
    model = recovery.train(recovery.complete("abc"), told, counts, {**config, "hidden": 1.0})
    kept = model.direction / first.direction  # no value was seen: nothing but weight decay
    torch.testing.assert_close(kept, kept[0, 0].expand_as(kept))


def test_the_true_edges_are_looked_at_only_in_the_end(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recovery, jobs = part("accuracy_recovery"), part("accuracy_jobs")
    table = part("accuracy_genes").made_up()
    table = table._replace(perturbed=torch.arange(240) % 9 - 1, in_series=torch.arange(240) >= 200)
    seen: list[Any] = []
    real = recovery.train
    monkeypatch.setattr(recovery, "load", lambda *_: table)
    monkeypatch.setattr(recovery, "train", lambda *given: seen.append(given) or real(*given))
    config = {**recovery.grid("ours", True)[0], "steps": 2}
    recovery.run(jobs.Job("recovery", jobs.MADE_UP, "ours", config, 0), jobs.Folders(None, Path()))
    graph, x, counts, _ = seen[0]
    assert set(graph.edges) == {(a, b) for a in "abcdefgh" for b in "abcdefgh" if a != b}
    assert len(x) == 200  # no time series
    assert counts[:10].logical_not().nonzero().tolist() == [[k, k - 1] for k in range(1, 9)]


def test_a_ranking_is_rated_as_by_hand(part: Any) -> None:
    recovery = part("accuracy_recovery")
    graph = PriorGraph.from_edges([("a", "b"), ("a", "c"), ("c", "c")])  # the loop is no pair
    scores = np.array([[9.0, 0.4, 0.3], [0.9, 9.0, 0.2], [0.1, 0.8, 9.0]])  # target by source
    # Ranks: a>b true, b>c, b>a, c>a, c>b, a>c true: precision 1 and 2/6 at the two that are edges.
    found = recovery.rated(scores, graph)
    assert found["AUPRC"] == pytest.approx((1 + 2 / 6) / 2)
    assert found["AUPRC ÷ random"] == pytest.approx((1 + 2 / 6) / 2 / (2 / 6))
    assert found["early precision ÷ random"] == pytest.approx(0.5 / (2 / 6))
    np.testing.assert_allclose(recovery.compared(scores)[1], [0.9 / 1.1, 0.0, 0.2 / 1.1])
    assert recovery.compared(np.zeros((2, 2))).tolist() == [[0.0, 0.0], [0.0, 0.0]]
