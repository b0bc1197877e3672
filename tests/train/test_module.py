"""PriorTransformerModule and fit: losses and scores by hand, the best epoch back, files that are enough."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import zipfile

import lightning
import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, r2_score
from torch import nn

from pyg_kpnn import PriorGraph, PriorGraphError, PriorTransformer, train
from pyg_kpnn.train import PriorDataModule, PriorTransformerModule, fit, load
from pyg_kpnn.train.scores import classification_scores, confusion, moments, regression_scores

EDGES = [("a", "b"), ("c", "b"), ("b", "b"), ("d", "c"), ("a", "d")]
GRAPH = PriorGraph.from_edges(EDGES, sign=[1, -1, 1, 0, 1], weight=[1.0, 3.0, 0.1, 5.0, 2.0])
NAN = float("nan")


def make(**options) -> PriorTransformer:
    torch.manual_seed(0)
    return PriorTransformer(GRAPH, **{"embed_dim": 6, "num_heads": 2, "edge_bias": "sign", **options})


def classifier(**options) -> PriorTransformer:
    return make(readout="class", num_classes=3, **options)


def data(count: int = 48, **options) -> PriorDataModule:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return PriorDataModule(3 * x + 1, y, graph=GRAPH, **{"batch_size": 16, **options})


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    """Nothing is left where the program runs, and the global random state is as it was."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)
    assert list(place.iterdir()) == []


def step(module: PriorTransformerModule, batch, stage: str = "train") -> torch.Tensor:
    """One step without a trainer."""
    module.log = lambda *args, **kwargs: None
    return module._step(batch, 0, stage)


# --- losses ---------------------------------------------------------------------------------------

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))
MASK = torch.arange(20).reshape(5, 4) % 7 == 0


@pytest.mark.parametrize("masked", [False, True])
def test_classification_loss(masked):
    module, y = PriorTransformerModule(classifier()), torch.tensor([0, 2, 1, 1, 0])
    assert module.task == "classification"
    mask = MASK if masked else None
    chosen = module.model(X, mask).log_softmax(1)[torch.arange(5), y]
    torch.testing.assert_close(step(module, (X, y, mask) if masked else [X, y]), -chosen.mean())


@pytest.mark.parametrize("readout", ["graph", "node"])
def test_regression_loss_leaves_unknown_targets_out(readout):
    module = PriorTransformerModule(make(readout=readout), "regression")
    y = torch.randn((5,) if readout == "graph" else (5, 4))
    y.view(-1)[::3] = NAN
    error = (module.model(X) - y).detach().numpy()
    loss = step(module, (X, y))
    assert loss.item() == pytest.approx(np.nanmean(error**2).item(), rel=1e-6)
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("stage", ["train", "val"])
def test_reconstruction_predicts_hidden_values_without_seeing_them(stage):
    module = PriorTransformerModule(make(), mask_fraction=0.5).eval()
    assert module.task == "reconstruction"
    x = X.clone()
    x[0, 0] = NAN
    torch.manual_seed(3)
    seen = []
    handle = module.model.register_forward_hook(lambda model, args, out: seen.append((args, out)))
    loss = step(module, (x, MASK), stage)
    handle.remove()
    ((values, mask), out), unmeasured = seen[0], MASK | x.isnan()
    hidden = mask & ~unmeasured
    assert 0 < hidden.sum() < (~unmeasured).sum()
    assert (mask & unmeasured).equal(unmeasured)
    assert loss.item() == pytest.approx((out - values)[hidden].square().mean().item(), rel=1e-6)
    # The model's answer does not depend on what is hidden.
    torch.testing.assert_close(module.model(values.masked_fill(hidden, 99.0), mask), out)


def test_validation_hides_the_same_values_in_every_epoch():
    module = PriorTransformerModule(make())
    state = torch.get_rng_state()
    one, other = module.hidden(X, 3, "val"), module.hidden(X, 3, "val")
    assert torch.equal(torch.get_rng_state(), state)
    assert one.equal(other)
    assert not torch.equal(module.hidden(X, 3, "val"), module.hidden(X, 4, "val"))
    assert module.hidden(torch.zeros(4000, 4), 0, "train").float().mean() == pytest.approx(0.15, abs=0.02)


def test_gradients_reach_every_parameter():
    module = PriorTransformerModule(classifier())
    step(module, (X, torch.tensor([0, 1, 2, 0, 1]), MASK)).backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


# --- scores ---------------------------------------------------------------------------------------


def test_scores_of_batches_are_those_of_the_whole():
    draw = torch.Generator().manual_seed(0)
    logits, y = torch.randn(40, 4, generator=draw), torch.randint(3, (40,), generator=draw)  # no class 3
    counts = sum(confusion(a, b) for a, b in zip(logits.split(7), y.split(7), strict=True))
    scores = classification_scores(counts)
    assert float(scores["accuracy"]) == pytest.approx(float((logits.argmax(1) == y).double().mean()))
    with pytest.warns(UserWarning, match="not in y_true"):
        expected = balanced_accuracy_score(y.numpy(), logits.argmax(1).numpy())
    assert float(scores["balanced_accuracy"]) == pytest.approx(expected)

    out, true = torch.randn(40, generator=draw), torch.randn(40, generator=draw) + 3
    true[5] = NAN
    known = ~true.isnan()
    pairs = zip(out.split(7), true.split(7), strict=True)
    scores = regression_scores(sum(moments(a, b, ~b.isnan()) for a, b in pairs))
    assert float(scores["mae"]) == pytest.approx(float((out - true)[known].abs().mean()), rel=1e-6)
    assert float(scores["r2"]) == pytest.approx(r2_score(true[known].numpy(), out[known].numpy()), rel=1e-5)


def test_scores_of_nothing():
    assert float(classification_scores(torch.zeros(2, 2))["balanced_accuracy"]) == 0
    assert float(regression_scores(torch.zeros(5))["r2"]) == 0


# --- fit ------------------------------------------------------------------------------------------


def test_fit_brings_the_best_epoch_back(tmp_path, capfd):
    part = data(batch_size=4)  # so that validation takes several batches
    assert len(part.val_index) > 4
    kept = []

    class Keep(lightning.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            state = {name: tensor.clone() for name, tensor in pl_module.state_dict().items()}
            kept.append((float(trainer.callback_metrics["val_loss"]), state))

    model = classifier()
    options = {"max_epochs": 6, "patience": None, "quiet": True, "accelerator": "cpu"}
    module = PriorTransformerModule(model, lr=0.3)  # so large that the last epoch is not the best
    assert fit(module, part, callbacks=[Keep()], **options) is module
    assert len(module.history) == len(kept) == 6
    assert [row["val_loss"] for row in module.history] == pytest.approx([loss for loss, _ in kept])
    assert {"epoch", "train_loss", "val_loss", "val_accuracy", "val_balanced_accuracy"} == set(
        module.history[0]
    )
    loss, best = min(kept, key=lambda pair: pair[0])
    assert loss < kept[-1][0]
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, best[name]), name
    assert not module.training
    assert not model.training
    assert capfd.readouterr() == ("", "")

    # The score of the data module's validation part, worked out outside.
    x, y, mask = part.samples.batch(part.val_index)
    logits = module.predict(x, mask)
    row = min(module.history, key=lambda row: row["val_loss"])
    assert row["val_loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, y)), rel=1e-5)
    expected = balanced_accuracy_score(y.numpy(), logits.argmax(1).numpy())
    assert row["val_balanced_accuracy"] == pytest.approx(expected)


def test_a_model_in_evaluation_mode_is_trained():
    modes = []

    class Modes(lightning.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            modes.append((pl_module.training, pl_module.model.training))

    module = PriorTransformerModule(classifier(dropout=0.1).eval())
    fit(module, data(), max_epochs=2, quiet=True, accelerator="cpu", callbacks=[Modes()])
    assert set(modes) == {(True, True)}


def test_early_stopping():
    module = PriorTransformerModule(classifier(), lr=1e-9, schedule="plateau")
    fit(module, data(), max_epochs=40, patience=2, monitor="val_accuracy", quiet=True, accelerator="cpu")
    assert len(module.history) == 3  # the first is the best, two are no better


@pytest.mark.parametrize("schedule", ["cosine", "plateau"])
def test_without_validation(schedule):
    module = PriorTransformerModule(make(), schedule=schedule)
    part = PriorDataModule(torch.randn(20, 4), val_fraction=0)
    fit(module, part, max_epochs=2, quiet=True, accelerator="cpu")
    assert [set(row) for row in module.history] == [{"epoch", "train_loss"}] * 2


def test_cosine_ends_at_zero():
    rates = []

    class Rates(lightning.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            (group,) = trainer.optimizers[0].param_groups
            rates.append(group["lr"])
            assert group["weight_decay"] == 0.3

    module = PriorTransformerModule(classifier(), schedule="cosine", lr=0.1, weight_decay=0.3)
    fit(module, data(), max_epochs=4, quiet=True, accelerator="cpu", callbacks=[Rates()])
    assert rates == pytest.approx([0.1 * (1 + np.cos(np.pi * k / 4)) / 2 for k in range(4)])


def test_quiet_silences_the_log_and_only_meanwhile():
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.addHandler(handler)
    try:
        fit(classifier(), data(), max_epochs=1, quiet=True, accelerator="cpu")
        assert records == []
        fit(classifier(), data(), max_epochs=1, quiet=False, accelerator="cpu")
        assert records != []
    finally:
        logger.removeHandler(handler)
    assert logger.level == level


def test_progress_is_shown_unless_quiet(capfd):
    fit(classifier(), data(), max_epochs=1, accelerator="cpu")
    assert "val_loss" in capfd.readouterr().out


def test_learns_and_predicts_from_raw_values():
    part = data(400, seed=3)
    module = PriorTransformerModule(classifier(embed_dim=16), lr=1e-2)
    fit(module, part, max_epochs=15, quiet=True, accelerator="cpu")
    x, y, _ = part.samples.batch(part.test_index)
    assert (
        module.predict(x, batch_size=7).argmax(1) == y
    ).double().mean() > 0.8  # the commonest has about half
    torch.testing.assert_close(module.mean.double(), part.scaling[0], rtol=1e-6, atol=1e-6)
    standardised = (x - part.scaling[0]) / part.scaling[1]
    torch.testing.assert_close(module.predict(x), module(standardised.float()))
    x[0, 0] = NAN
    mask = x.isnan()
    torch.testing.assert_close(module.predict(x), module.predict(x.nan_to_num(7.0), mask))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_fit_leaves_nothing(error, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    class Stop(lightning.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                raise error

    with pytest.raises((error, SystemExit)):
        fit(
            classifier(),
            data(),
            max_epochs=4,
            quiet=True,
            accelerator="cpu",
            callbacks=[Stop()],
            save_to=tmp_path / "m.ckpt",
        )
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "m.ckpt").exists()


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    names = np.array(["low", "mid", "top"])[((x[:, 0] > 0).long() + (x[:, 1] > 0).long()).numpy()]
    part = PriorDataModule(x * 3 + 1, names.tolist())
    saver = lightning.pytorch.callbacks.ModelCheckpoint(folder, filename="lightning")
    model = classifier(dropout=0.1).double()
    module = PriorTransformerModule(model, lr=0.01, schedule="cosine")
    state = torch.get_rng_state()
    fit(
        module,
        part,
        max_epochs=2,
        quiet=True,
        accelerator="cpu",
        callbacks=[saver],
        save_to=folder / "best.ckpt",
        precision="64-true",
    )
    torch.set_rng_state(state)
    return module, folder


@pytest.mark.parametrize("file", ["best.ckpt", "lightning.ckpt"])
def test_a_file_is_enough(trained, file):
    module, folder = trained
    state = torch.get_rng_state()
    again = load(folder / file)
    assert torch.equal(torch.get_rng_state(), state)
    assert again.graph == GRAPH
    assert again.config == module.config
    assert again.config["schedule"] == "cosine"
    assert again.model.config == module.model.config
    assert again.class_names == ("low", "mid", "top")
    assert torch.equal(again.mean, module.mean)
    assert not again.training
    assert again.mean.dtype == torch.float64
    if file == "best.ckpt":
        x = torch.randn(3, 4)
        assert torch.equal(again.predict(x), module.predict(x))
    assert type(PriorTransformerModule.load_from_checkpoint(folder / file)) is PriorTransformerModule


def spoil(stored: dict, **changes) -> dict:
    described = {**stored["pyg_kpnn"], **changes}
    return {**stored, "pyg_kpnn": {key: value for key, value in described.items() if value is not None}}


RENAMED = PriorGraph.from_edges([("a", "b"), ("c", "b"), ("b", "b"), ("dd", "c"), ("a", "dd")])
SPOILT = {
    "no entry": (lambda s: {"state_dict": s["state_dict"]}, "must be a checkpoint of PriorTransformerModule"),
    "no weights": (lambda s: {"pyg_kpnn": s["pyg_kpnn"]}, "must be a checkpoint of PriorTransformerModule"),
    "a list": (lambda s: [1], "must be a checkpoint of PriorTransformerModule"),
    "newer": (
        lambda s: spoil(s, format_version=2, pyg_kpnn_version="9.1"),
        "1 to 1. Got 2, written by pyg_kpnn '9.1'",
    ),
    "unknown key": (lambda s: spoil(s, modul=1), r"only known keys. Got 'modul' \(did you mean 'module'\?\)"),
    "no prior": (lambda s: spoil(s, prior=None), "'prior' in .* must be a dict. Got None"),
    "another graph": (lambda s: spoil(s, prior=RENAMED.to_dict()), "must come from the same graph"),
    "an option": (
        lambda s: spoil(s, model={**s["pyg_kpnn"]["model"], "heads": 2}),
        "must hold a prior and sizes that go together. .*'heads'",
    ),
    "a size": (lambda s: spoil(s, model={**s["pyg_kpnn"]["model"], "num_heads": 0}), "num_heads must be"),
    "a task": (lambda s: spoil(s, module={**s["pyg_kpnn"]["module"], "task": "guess"}), "'task' must be"),
}


@pytest.mark.parametrize("name", list(SPOILT))
def test_spoilt_contents_are_named(name, trained, tmp_path):
    stored = torch.load(trained[1] / "best.ckpt", weights_only=True)
    change, message = SPOILT[name]
    torch.save(change(stored), tmp_path / "spoilt.ckpt")
    with pytest.raises(PriorGraphError, match=message):
        load(tmp_path / "spoilt.ckpt")


def test_damaged_files(trained, tmp_path):
    whole = (trained[1] / "best.ckpt").read_bytes()
    spoilt = tmp_path / "spoilt.ckpt"
    with pytest.raises(PriorGraphError, match=r"must be a file. There is none at"):
        load(spoilt)
    spoilt.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PriorGraphError, match="must be a checkpoint of plain data, whole"):
        load(spoilt)
    with zipfile.ZipFile(trained[1] / "best.ckpt") as file:
        records = [name for name in file.namelist() if "/data/" in name]
        numbers = file.read(max(records, key=lambda name: file.getinfo(name).file_size))
    assert whole.count(numbers) == 1
    spoilt.write_bytes(
        whole.replace(numbers, bytes([numbers[0] ^ 1]) + numbers[1:])
    )  # a weight, wrong by a bit
    torch.load(spoilt, weights_only=True)  # torch does not see it
    with pytest.raises(PriorGraphError, match="plain data, whole"):
        load(spoilt)


def test_a_pickle_is_not_run(trained, tmp_path):
    class Evil:
        def __reduce__(self):
            return exec, ("raise SystemExit('ran')",)

    stored = torch.load(trained[1] / "best.ckpt", weights_only=True)
    torch.save({**stored, "more": Evil()}, tmp_path / "evil.ckpt")
    with pytest.raises(PriorGraphError, match="plain data"):
        load(tmp_path / "evil.ckpt")


def test_resuming_another_graph_changes_nothing(trained):
    other = PriorTransformerModule(PriorTransformer(RENAMED, **trained[0].model.config).double())
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(PriorGraphError, match=r"(same graph)|(edges and sizes)"):
        other.load_state_dict(trained[0].state_dict())
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())


def test_saving_is_all_or_nothing(trained, tmp_path, monkeypatch):
    path = tmp_path / "m.ckpt"
    path.write_bytes(b"old")
    monkeypatch.setattr(torch, "save", lambda value, file: (file.write(b"half"), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        trained[0].save(path)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["m.ckpt"]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (lambda: nn.Linear(2, 2), {}, "'model' must be a PriorTransformer. Got Linear"),
        (make, {"task": "guess"}, "'task' must be None, 'classification', 'regression' or 'reconstruction'"),
        (make, {"task": "classification"}, "needs a model with readout='class'. Got readout='node'"),
        (classifier, {"task": "reconstruction"}, "needs a model with readout='node'. Got readout='class'"),
        (classifier, {"task": "regression"}, "readout='graph' or 'node'"),
        (lambda: make(readout="class", num_classes=1), {}, "num_classes of at least 2"),
        (make, {"schedule": "step"}, "'schedule' must be None, 'cosine' or 'plateau'. Got 'step'"),
        (make, {"lr": 0}, "'lr' must be a number above 0. Got 0"),
        (make, {"lr": NAN}, "'lr' must be a number above 0"),
        (make, {"weight_decay": -1}, "'weight_decay' must be a number at least 0"),
        (make, {"mask_fraction": 1}, "'mask_fraction' must be a number between 0 and 1. Got 1"),
        (make, {"lr": "1"}, "'lr' must be a number"),
        (classifier, {"class_names": ["a", "b"]}, "each of the model's classes, 3. Got 2"),
        (classifier, {"class_names": "abc"}, "'class_names' must be a sequence of str"),
    ],
)
def test_bad_options(model, options, message):
    with pytest.raises(PriorGraphError, match=message):
        PriorTransformerModule(model(), **options)


@pytest.mark.parametrize(
    ("module", "batch", "message"),
    [
        (lambda: PriorTransformerModule(classifier()), X, r"must be \(x, y\) or .* Got 1 parts"),
        (lambda: PriorTransformerModule(make()), (X, MASK, MASK), r"must be x, \(x,\) or .* Got 3 parts"),
        (
            lambda: PriorTransformerModule(make(), "regression"),
            (X, X[:, 0]),
            r"shape of the outputs, \(5, 4\). Got \(5,\)",
        ),
        (
            lambda: PriorTransformerModule(classifier()),
            (X[:, :3], X[:, 0].long()),
            "x must be floating point",
        ),
    ],
)
def test_bad_batches(module, batch, message):
    with pytest.raises(PriorGraphError, match=message):
        step(module(), batch)


def test_bad_fits():
    with pytest.raises(
        PriorGraphError, match="'model' must be a PriorTransformerModule or a PriorTransformer"
    ):
        fit(nn.Linear(2, 2), data())
    with pytest.raises(PriorGraphError, match=r"'data' must be a PriorDataModule. Got Tensor"):
        fit(classifier(), X)
    with pytest.raises(PriorGraphError, match="'mode' must be"):
        fit(classifier(), data(), mode="best")
    five = PriorDataModule(torch.randn(20, 5), torch.arange(20) % 3)
    with pytest.raises(PriorGraphError, match=r"one column a unit of the model's prior, 4. Got 5"):
        fit(classifier(), five, max_epochs=1, quiet=True, accelerator="cpu")
    module = PriorTransformerModule(classifier(), schedule="cosine")
    with pytest.raises(PriorGraphError, match=r"max_epochs of at least 1. Got -1"):
        fit(module, data(), max_epochs=-1, quiet=True, accelerator="cpu")


def test_bad_values_to_predict():
    module = PriorTransformerModule(classifier())
    for x in (X[0], X[:, :3], 3, X.long()[:, :2]):
        with pytest.raises(PriorGraphError, match="x must be floating point"):
            module.predict(x)
    assert module.model.training


def test_without_the_extra():
    code = "import sys; sys.modules['lightning'] = None\nimport pyg_kpnn.train"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(
        r'ImportError: pyg_kpnn\.train needs lightning: pip install "pyg_kpnn\[train\]"', done.stderr
    )


def test_names():
    assert train.__all__ == ["PriorDataModule", "PriorTransformerModule", "fit", "load"]
