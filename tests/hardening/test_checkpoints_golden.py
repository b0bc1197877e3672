"""Files of every released version stay readable, without a pickle, and predict what they did."""

from __future__ import annotations

import importlib.util
import json
import os
import pickletools
import random
import zipfile
from pathlib import Path

import pytest
import torch

import pyg_kpnn
from pyg_kpnn import PriorGraph, PriorGraphError, load_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and path.name[0].isdigit())
CHECKPOINTS = sorted(GOLDEN.glob("*/*.ckpt"))
named = pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: f"{path.parent.name}/{path.stem}")


@pytest.fixture(scope="session")
def writer():
    """The script that wrote the files; it knows how to build a model from what they say."""
    spec = importlib.util.spec_from_file_location("write_golden", GOLDEN / "write_golden.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_this_version_has_golden_files():
    """Before a release: python tests/golden/write_golden.py, and commit."""
    assert pyg_kpnn.__version__ in VERSIONS
    for version in VERSIONS:
        names = {path.name for path in (GOLDEN / version).iterdir()}
        assert {"graphs.json", "prior_transformer.ckpt", "prior_transformer.safetensors"} <= names


@named
def test_a_golden_checkpoint_loads_and_predicts_as_it_did(path, writer):
    saved = torch.load(path, weights_only=True)
    model = writer.build(saved)
    assert str(load_checkpoint(model, saved["model"])) == "<All keys matched successfully>"
    for name, entry in model.state_dict().items():
        assert torch.equal(entry, saved["model"][name]), name
    output = writer.predict(saved, model, saved["inputs"])
    torch.testing.assert_close(output, saved["output"], rtol=1e-10, atol=1e-12)


@named
def test_a_golden_safetensors_file_holds_the_same(path, writer):
    safetensors = pytest.importorskip("safetensors")
    saved = torch.load(path, weights_only=True)
    with safetensors.safe_open(path.with_suffix(".safetensors"), "pt") as file:
        record = json.loads(file.metadata()["record"])
        state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert record == {key: saved[key] for key in ("class", "graph", "config")}
    assert state.keys() == saved["model"].keys()
    assert all(torch.equal(state[key], saved["model"][key]) for key in state)
    load_checkpoint(writer.build(record), state)


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_graphs_have_the_fingerprint_they_had(version):
    stored = json.loads((GOLDEN / version / "graphs.json").read_text(encoding="utf-8"))
    assert len(stored) >= 3
    for name, entry in stored.items():
        graph = PriorGraph.from_dict(entry["payload"])
        assert graph.fingerprint == entry["fingerprint"], name
        assert graph.to_dict() == entry["payload"], name


@named
def test_a_golden_checkpoint_of_another_graph_is_refused(path, writer):
    saved = torch.load(path, weights_only=True)
    if saved["graph"] is None:
        pytest.skip("edges come with each call, so the checkpoint has none")
    for change in ("rename", "turn", "drop"):
        edges = [list(edge) for edge in saved["graph"]["edges"]]
        if change == "rename":
            edges = [["Tal1" if name == edges[0][0] else name for name in edge] for edge in edges]
        elif change == "turn":
            edges[0] = edges[0][::-1]
        else:
            edges.pop()
        payload = {**saved["graph"], "edges": edges}
        for key in ("signs", "weights"):
            if key in payload:
                payload[key] = payload[key][: len(edges)]
        model = writer.build({**saved, "graph": payload})
        before = {name: entry.clone() for name, entry in model.state_dict().items()}
        with pytest.raises(PriorGraphError, match=r"(must come from the same graph|must have the edges)"):
            load_checkpoint(model, saved["model"])
        assert all(torch.equal(entry, before[name]) for name, entry in model.state_dict().items()), change


@named
def test_golden_files_name_no_class_of_ours(path):
    """Then they load where torch is, whatever becomes of the package."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        pickled = next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    classes = {arg for op, arg, _ in pickletools.genops(pickled) if op.name in ("GLOBAL", "STACK_GLOBAL")}
    assert classes
    assert all(name.split(" ")[0] in ("torch", "torch._utils", "collections") for name in classes), classes


def test_golden_files_are_small():
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 200_000 * len(VERSIONS)


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_pickle_in_the_place_of_a_checkpoint_is_not_run(tmp_path):
    path, mark = tmp_path / "model.ckpt", tmp_path / "mark"
    torch.save({**torch.load(CHECKPOINTS[0], weights_only=True), "model": Bomb(mark)}, path)
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(path, weights_only=True)
    assert not mark.exists()


def test_damage_that_torch_load_lets_pass_is_found_by_the_checksums(tmp_path):
    """What docs/checkpoints.md says about files that travel."""
    whole, golden = CHECKPOINTS[-1].read_bytes(), torch.load(CHECKPOINTS[-1], weights_only=True)["model"]
    path = tmp_path / "model.ckpt"
    for seed in range(100):
        rng = random.Random(seed)
        at = rng.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    continue
            saved = torch.load(path, weights_only=True)
        except Exception:  # whatever a broken directory of the archive raises
            continue
        assert all(torch.equal(saved["model"][name], golden[name]) for name in golden)


def test_golden_files_are_never_written_again(writer):
    with pytest.raises(FileExistsError):
        writer.main()
