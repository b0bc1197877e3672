"""benchmarks/accuracy.py on made-up data: its parts against what is worked out by hand, and one quick run."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GATv2Conv, TransformerConv

from pyg_kpnn import PriorAttentionConv


def rows(job: Any, **scores: float) -> dict[str, Any]:
    return {**job._asdict(), "validation": 0.0, "test": {}, "parameters": 1, "seconds": 1.0, **scores}


# The file of rows


def test_a_configuration_is_chosen_by_the_mean_of_its_validation_scores(part: Any) -> None:
    jobs = part("accuracy_jobs")
    trials = [jobs.Job("t", "d", "m", {"lr": lr}, seed, jobs.TUNE) for lr in (1, 2, 3) for seed in (7, 8)]
    scores = [0.9, 0.1, 0.5, 0.7, 0.6, 0.6]  # means 0.5, 0.6, 0.6: the first of equals
    found = {job.key: rows(job, validation=score) for job, score in zip(trials, scores, strict=True)}
    assert jobs.choose(trials, found) == {"lr": 2}


def test_the_epoch_that_counts_has_the_best_score_then_the_lowest_loss(part: Any) -> None:
    best = part("accuracy_jobs").Best()
    epochs = [(0.5, 1.0), (0.4, 0.1), (0.5, 0.9), (0.5, 0.9), (0.6, 3.0), (0.5, 0.0)]
    assert [best.improved(*epoch) for epoch in epochs] == [True, False, True, False, True, False]
    assert best.score == 0.6


def test_rows_survive_a_line_that_was_cut_off(part: Any, tmp_path: Path) -> None:
    jobs = part("accuracy_jobs")
    path = tmp_path / "new" / "log.jsonl"
    first, second = (jobs.Job("t", "d", "m", {"lr": 0.1}, seed) for seed in (0, 1))
    log = jobs.Log(path)
    assert log.rows == {}
    log.add(rows(first))
    path.write_text(path.read_text() + '{"task": "t", "data')
    log = jobs.Log(path)
    assert list(log.rows) == [first.key]
    log.add(rows(second))
    assert list(jobs.Log(path).rows) == [first.key, second.key]
    assert len(path.read_text().splitlines()) == 3  # nothing is taken away


def test_seeds_that_choose_are_not_those_that_count(accuracy: ModuleType, part: Any) -> None:
    jobs, task = part("accuracy_jobs"), accuracy.TASKS["nodes"]
    trials = jobs.tuning_jobs("nodes", task, "Cora", False)
    assert {job.seed for job in trials} == {1000, 1001}
    assert len(trials) == len(task.models) * 4 * 2
    found = {job.key: rows(job, validation=job.config["lr"]) for job in trials}
    counting = jobs.counting_jobs("nodes", task, "Cora", 10, False, found)
    assert [job.seed for job in counting] == [*range(10)] * len(task.models)
    assert {job.config["lr"] for job in counting} == {0.01}
    del found[trials[0].key]  # a fit of GCN failed: it has no configuration
    assert {job.model for job in jobs.counting_jobs("nodes", task, "Cora", 1, False, found)} == set(
        task.models
    ) - {"GCN"}


def test_a_table_has_the_fits_that_its_page_tells_of(accuracy: ModuleType) -> None:
    wanted = (("nodes", "Cora"), ("graphs", "MUTAG"), ("states", "HSC"), ("states", "THP1"))
    for words, *expected in (([], 10, 30, 10, 30), (["--quick"], 2, 2, 2, 2), (["--seeds", "4"], 4, 4, 4, 4)):
        options = accuracy.options_of(words)
        counts = [accuracy.seeds_of(accuracy.TASKS[name], data, options) for name, data in wanted]
        assert counts == expected


def test_a_fit_starts_from_its_seed_and_leaves_the_random_state(accuracy: ModuleType, part: Any) -> None:
    jobs = part("accuracy_jobs")
    job = jobs.Job("masked", jobs.MADE_UP, "MLP", accuracy.TASKS["masked"].grid("MLP", True)[0], 3)
    folders = jobs.Folders(None, Path())
    found = []
    for state in (1, 2):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        found.append(accuracy.work(job, folders))
        assert torch.equal(torch.get_rng_state(), before)
    first, second = found
    assert first["test"] == second["test"] != accuracy.work(job._replace(seed=4), folders)["test"]


# Tables


def test_a_table_holds_means_deviations_and_differences(part: Any) -> None:
    jobs, tables = part("accuracy_jobs"), part("accuracy_tables")
    models = ("ours", "worse", "near")
    task = jobs.Task(
        "T", ("d",), models, lambda *_: [{"lr": 1}, {"lr": 2}], lambda *_: None, lambda *_: None, "a"
    )
    scores = {"ours": (0.80, 0.82), "worse": (0.70, 0.72), "near": (0.79, 0.82)}
    found = [
        {**rows(jobs.Job("t", "d", model, {"lr": 2}, seed)), "test": {"a": value}, "cpu_seconds": 0.5}
        for model in models
        for seed, value in enumerate(scores[model])
    ]
    # Deviation of 0.80 and 0.82: 0.0141. Standard error of a difference: sqrt(2 * 0.0141² / 2) = 0.0141.
    assert tables.tables(task, found).splitlines()[2:] == [
        "| ours | 81.0 ± 1.4 | – | 2 | 1 | 1.0 | 0.5 | lr 2 |",
        "| worse | 71.0 ± 1.4 | **-10.0** | 2 | 1 | 1.0 | 0.5 | lr 2 |",
        "| near | 80.5 ± 2.1 | -0.5 | 2 | 1 | 1.0 | 0.5 | lr 2 |",
    ]


def test_a_model_that_is_read_in_two_ways_has_two_lines(part: Any) -> None:
    tables = part("accuracy_tables")
    apart = tables.read_apart({"model": "ours", "test": {"one/x": 1.0, "two/x": 2.0, "one/y": 3.0}})
    assert [(row["line"], row["test"]) for row in apart] == [
        ("ours, one", {"x": 1.0, "y": 3.0}),
        ("ours, two", {"x": 2.0}),
    ]


def test_tables_go_between_their_markers(part: Any, tmp_path: Path) -> None:
    write = part("accuracy_tables").write_between_markers
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- t -->\nold\n<!-- /t -->\nb\n")
    for _ in range(2):
        write(page, {"t": "new"})
        assert page.read_text() == "a\n<!-- t -->\n\nnew\n\n<!-- /t -->\nb\n"
    with pytest.raises(SystemExit, match="must have <!-- other --> and, after it, <!-- /other -->, once"):
        write(page, {"other": "new"})


# Nodes and graphs


@pytest.mark.parametrize("conv", [GATv2Conv, TransformerConv, PriorAttentionConv])
def test_products_of_words_are_those_of_the_layer_itself(part: Any, conv: Any) -> None:
    nodes = part("accuracy_nodes")
    data = nodes.made_up(30)
    layer = conv(data.num_features, 3, heads=2)
    words = nodes.Words(data.x)
    swapped = nodes.on_words(conv(data.num_features, 3, heads=2), words)
    swapped.load_state_dict(layer.state_dict())
    words.drop(0.5, training=True)
    dense = torch.zeros(data.x.shape)
    dense[data.x.nonzero(as_tuple=True)] = words.kept
    assert 0 < (words.kept == 0).sum() < len(words.kept)
    factor = torch.randn(30, 6)
    expected = layer(dense, data.edge_index)
    got = swapped(torch.zeros(1, 1).expand(data.x.shape), data.edge_index)
    torch.testing.assert_close(got, expected)
    for out in (expected, got):
        (out * factor).sum().backward()
    wanted = dict(layer.named_parameters())
    for name, parameter in swapped.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name].grad, msg=name)


def test_ten_folds_are_dealt_class_by_class(part: Any) -> None:
    folds = part("accuracy_graphs").folds
    labels = np.array([0] * 33 + [1] * 25)
    tested = []
    for seed in range(10):
        train, validation, test = folds(labels, seed)
        assert sorted(train + validation + test) == list(range(58))
        assert validation == folds(labels, (seed + 1) % 10)[2]
        assert (labels[test] == 1).sum() in (2, 3)
        assert len(test) in (5, 6)
        tested += test
    assert sorted(tested) == list(range(58))
    assert folds(labels, 10)[2] != folds(labels, 0)[2]


# All of it


def test_a_quick_run_makes_every_table_and_goes_on_where_it_was(
    accuracy: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, page, found = (tmp_path / name for name in ("log.jsonl", "page.md", "all.json"))
    page.write_text("".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in accuracy.TASKS))
    words = ["--quick", "--seeds", "1", "--jobs", "1", "--log", str(log)]
    accuracy.main([*words, "--tables", str(page), "--json", str(found)])
    text, out = page.read_text(), capsys.readouterr().out
    for task in accuracy.TASKS.values():
        assert f"### {task.title}\n" in out
        for model in task.models:
            assert f"| {model}" in text
    lines = log.read_text()
    content = json.loads(found.read_text())
    assert set(content["tables"]) == set(accuracy.TASKS)
    assert sum(map(len, content["rows"].values())) == sum(
        len(task.models) for task in accuracy.TASKS.values()
    )
    log.write_text(lines[:-20])  # the last line was cut off
    accuracy.main(words)
    again = [json.loads(line) for line in log.read_text().splitlines()[-1:]]
    assert len(log.read_text().splitlines()) == len(lines.splitlines()) + 1
    last = json.loads(lines.splitlines()[-1])
    assert {**again[0], **dict.fromkeys(("seconds", "cpu_seconds"))} == {
        **last,
        **dict.fromkeys(("seconds", "cpu_seconds")),
    }


def test_what_is_not_there_is_left_out_and_said(
    accuracy: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accuracy.main(["--data", str(tmp_path), "--log", str(tmp_path / "log.jsonl")])
    out = capsys.readouterr().out
    assert "Left out: nodes on Cora: no raw files of it; name their folder with --data." in out
    assert "Left out: recovery on DREAM4 10: there is no dream4/size10_1; name its folder with --data." in out
    assert not (tmp_path / "log.jsonl").exists()


def test_a_fit_that_fails_stops_no_other(
    accuracy: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = accuracy.TASKS["masked"]

    def run(job: Any, folders: Any) -> Any:
        if job.model == "MLP":
            raise RuntimeError("no luck")
        return task.run(job, folders)

    monkeypatch.setitem(accuracy.TASKS, "masked", task.__class__(**{**vars(task), "run": run}))
    words = ["--quick", "--tasks", "masked", "--seeds", "1", "--jobs", "1", "--models", "MLP;masked linear"]
    with pytest.raises(SystemExit):
        accuracy.main([*words, "--log", str(tmp_path / "log.jsonl")])
    out = capsys.readouterr().out
    assert "no luck" in out
    assert "| masked linear |" in out
    assert "| MLP |" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "nodes,edges"], "'edges' is none of nodes, graphs, states, masked, recovery"),
        (["--datasets", "Pubmed"], "'Pubmed' is none of Cora, CiteSeer, MUTAG"),
        (["--models", "GCN;GIN2"], "'GIN2' is none of GCN, GAT"),
        (["--seeds", "0"], "'0' is no whole number above 0"),
        (["--jobs", "x"], "'x' is no whole number above 0"),
    ],
)
def test_words_that_mean_nothing_are_refused(
    accuracy: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        accuracy.options_of(words)
    assert message in capsys.readouterr().err
