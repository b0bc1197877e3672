"""Folders that models are shared in: whole, checked, without pickles; the real hub is never asked."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from pyg_kpnn import PriorGraph, PriorGraphError, PriorTransformer
from pyg_kpnn import hub as sharing
from pyg_kpnn.hub import load_pretrained, model_card, push_to_hub, save_pretrained

EDGES = [("a", "b"), ("c", "b"), ("b", "b"), ("d", "c"), ("é", "a")]
GRAPH = PriorGraph.from_edges(EDGES, sign=[1, -1, 1, 0, 1], weight=[1.0, 3.0, 0.1, 5.0, 1 / 3], nodes=["z"])
FILES = ["README.md", "config.json", "model.safetensors"]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Whoever reaches the real hub in a test fails."""

    def refuse(*args, **kwargs):
        raise AssertionError("a test asked the hub")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(huggingface_hub, "HfApi", refuse)


def make(graph: PriorGraph = GRAPH, **options) -> PriorTransformer:
    torch.manual_seed(0)
    return PriorTransformer(graph, **{"embed_dim": 6, "num_heads": 2, **options}).eval()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def x(batch: int = 3) -> torch.Tensor:
    return torch.randn(batch, 6, generator=torch.Generator().manual_seed(1))


# --- configuration --------------------------------------------------------------------------------

OPTIONS = [
    {},
    {"readout": "class", "num_classes": 3, "edge_bias": "sign", "dropout": 0.25, "chunk_size": 2},
    {"readout": "graph", "edge_bias": "log_weight", "add_self_loops": False, "num_layers": 3},
    {"readout": "class", "num_classes": 1, "num_heads": 3},
    {"readout": "class", "num_classes": 2, "shared_head": True},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_config_is_what_the_constructor_was_given(options):
    defaults = {
        "embed_dim": 6,
        "num_heads": 2,
        "num_layers": 2,
        "readout": "node",
        "num_classes": None,
        "shared_head": False,
        "edge_bias": None,
        "dropout": 0.0,
        "add_self_loops": True,
        "chunk_size": None,
    }
    config = make(**options).config
    assert config == {**defaults, **options}
    assert json.loads(json.dumps(config)) == config


# --- there and back -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_model_comes_back(options, dtype, tmp_path):
    model = make(**options).to(dtype)
    assert save_pretrained(model, tmp_path / "m") == tmp_path / "m"
    assert files(tmp_path / "m") == FILES
    state = torch.get_rng_state()
    again = load_pretrained(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), state)  # no number is drawn for weights that are replaced
    assert again.graph == GRAPH
    assert again.graph.fingerprint == GRAPH.fingerprint
    assert again.config == model.config
    assert not again.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
        assert again.state_dict()[name].dtype == tensor.dtype, name
    assert torch.equal(again(x().to(dtype)), model(x().to(dtype)))
    again.train()(x().to(dtype)).sum().backward()


def test_methods(tmp_path):
    model = make()
    model.save_pretrained(str(tmp_path / "deep" / "folder"), card="mine")
    assert (tmp_path / "deep" / "folder" / "README.md").read_text() == "mine"
    again = PriorTransformer.from_pretrained(str(tmp_path / "deep" / "folder"), device="cpu")
    assert torch.equal(again(x()), model(x()))


def test_wide_nodes(tmp_path):
    graph = PriorGraph.from_edges([("a", "b"), ("b", "c")], widths={"b": 3}, sign=[1, -1])
    model = make(graph, edge_bias="sign")
    values = torch.randn(2, 5)
    assert torch.equal(load_pretrained(save_pretrained(model, tmp_path))(values), model(values))


def test_the_files(tmp_path):
    model = make(edge_bias="sign")
    save_pretrained(model, tmp_path)
    stored = config_of(tmp_path)
    assert stored["prior"] == GRAPH.to_dict()
    assert stored["fingerprint"] == GRAPH.fingerprint
    assert stored["format_version"] == 1
    assert stored["pyg_kpnn_version"] == sys.modules["pyg_kpnn"].__version__
    assert "é" in (tmp_path / "config.json").read_text(encoding="utf-8")
    weights = load_file(tmp_path / "model.safetensors")
    assert set(weights) == set(model.state_dict())
    for path in tmp_path.iterdir():
        assert b"\x80\x02" not in path.read_bytes()[:2]  # how a pickle begins


def test_a_class_of_its_own(tmp_path):
    class Mine(PriorTransformer):
        pass

    mine = Mine(GRAPH, embed_dim=6, num_heads=2)
    mine.save_pretrained(tmp_path)
    assert type(Mine.from_pretrained(tmp_path)) is Mine
    with pytest.raises(PriorGraphError, match=r"PriorTransformer loads only what it saved.*'Mine'"):
        load_pretrained(tmp_path)


def test_a_second_save_replaces_the_first_and_keeps_what_is_not_its_own(tmp_path):
    save_pretrained(make(), tmp_path)
    (tmp_path / "README.md").write_text("written by hand")
    (tmp_path / "notes.txt").write_text("kept")
    other = make(num_layers=1)
    save_pretrained(other, tmp_path)
    assert files(tmp_path) == sorted([*FILES, "notes.txt"])
    assert (tmp_path / "README.md").read_text() == "written by hand"
    assert load_pretrained(tmp_path).config == other.config
    save_pretrained(other, tmp_path, card="new")
    assert (tmp_path / "README.md").read_text() == "new"


@pytest.mark.parametrize("where", ["save_file", "_describe", "model_card"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("old", [False, True])
def test_an_interrupted_save_leaves_what_was_there(where, error, old, tmp_path, monkeypatch):
    folder = tmp_path / "m"
    if old:
        save_pretrained(make(num_layers=1), folder)
        (folder / "README.md").unlink()  # so that a card is written again
        before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def stop(*args, **kwargs):
        raise error

    owner = sharing._safetensors() if where == "save_file" else sharing
    monkeypatch.setattr(owner, where, stop)
    with pytest.raises(error):
        save_pretrained(make(), folder)
    if old:
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    else:
        assert list(tmp_path.iterdir()) == []


def test_files_of_two_saves_are_not_one_model(tmp_path):
    # As after an interruption between two files: same graph, same sizes, other weights.
    save_pretrained(make(), tmp_path / "one")
    other = make()
    other.reset_parameters()
    save_pretrained(other, tmp_path / "two")
    (tmp_path / "two" / "model.safetensors").replace(tmp_path / "one" / "model.safetensors")
    with pytest.raises(PriorGraphError, match="SHA-256 differs"):
        load_pretrained(tmp_path / "one")


# --- what is refused ------------------------------------------------------------------------------


def edit(folder: Path, **changes) -> None:
    stored = {**config_of(folder), **changes}
    stored = {key: value for key, value in stored.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(stored), encoding="utf-8")


def rewrite(folder: Path, change) -> None:
    """Other weights, with the hash that goes with them."""
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")
    edit(folder, weights_sha256=sharing._sha256(folder / "model.safetensors"))


RENAMED = PriorGraph.from_edges([("a", "b"), ("c", "b"), ("b", "b"), ("dd", "c"), ("é", "a")], nodes=["z"])
DAMAGES = {
    "no config": (lambda f: (f / "config.json").unlink(), r"must have config\.json\. There is none in"),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        r"must have model\.safetensors\. There is none",
    ),
    "half a config": (
        lambda f: (f / "config.json").write_bytes((f / "config.json").read_bytes()[:-9]),
        r"config\.json must be JSON, whole\. It is damaged: ",
    ),
    "no text": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "must be JSON, whole"),
    "deep": (lambda f: (f / "config.json").write_text("[" * 100_000), "must be JSON, whole"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), "must hold a JSON object. Got a list"),
    "newer": (
        lambda f: edit(f, format_version=2, pyg_kpnn_version="9.1", more=1),
        r"a format this version reads, 1 at most\. Got 2, written by pyg_kpnn '9\.1'",
    ),
    "version 0": (lambda f: edit(f, format_version=0), "must be at least 1. Got 0"),
    "version by word": (
        lambda f: edit(f, format_version="1"),
        "'format_version' in .* must be a int. Got '1'",
    ),
    "version True": (lambda f: edit(f, format_version=True), "must be a int. Got True"),
    "no prior": (lambda f: edit(f, prior=None), "must have the key 'prior'"),
    "unknown key": (
        lambda f: edit(f, configs=1),
        r"must hold only known keys\. Got 'configs' \(did you mean 'config'\?\)",
    ),
    "unknown option": (
        lambda f: edit(f, config={**config_of(f)["config"], "num_head": 2}),
        r"'config' in .* must hold only known keys\. Got 'num_head' \(did you mean 'num_heads'\?\)",
    ),
    "option missing": (
        lambda f: edit(f, config={"embed_dim": 6}),
        "must have the key 'num_heads'. It is not there",
    ),
    "option refused": (
        lambda f: edit(f, config={**config_of(f)["config"], "num_heads": "2"}),
        "num_heads must be a positive integer, got '2'",
    ),
    "another size": (
        lambda f: edit(f, config={**config_of(f)["config"], "embed_dim": 8}),
        "index digest differs",
    ),
    "a size beyond memory": (
        lambda f: edit(f, config={**config_of(f)["config"], "embed_dim": 2**20}),
        "index digest differs",
    ),
    "another depth": (
        lambda f: edit(f, config={**config_of(f)["config"], "num_layers": 1}),
        r"must fit config\.json beside it\.(.|\n)*Unexpected key",
    ),
    "dtype": (lambda f: edit(f, dtype="int8"), "'dtype' in .* must be one of float64, .* Got 'int8'"),
    "prior no graph": (
        lambda f: edit(f, prior={"kpnn2_spec": 1, "layout": "adjacency", "edges": [["a"]]}),
        r"'prior' in .* must be a graph\. Every edge",
    ),
    "prior changed": (
        lambda f: edit(f, prior=RENAMED.to_dict()),
        "must be the graph that was saved, .* names, edges, signs or weights were changed",
    ),
    "another graph": (
        lambda f: edit(f, prior=RENAMED.to_dict(), fingerprint=RENAMED.fingerprint),
        "must come from the same graph",
    ),
    "a bit": (
        lambda f: (f / "model.safetensors").write_bytes(
            (f / "model.safetensors").read_bytes()[:-1] + b"\x7f"
        ),
        "SHA-256 differs. It is damaged, or of another save",
    ),
    "weights cut short": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-100]),
        "SHA-256 differs",
    ),
    "no safetensors": (
        lambda f: (
            (f / "model.safetensors").write_bytes(b"no"),
            edit(f, weights_sha256=sharing._sha256(f / "model.safetensors")),
        ),
        "must be a safetensors file, whole",
    ),
    "a weight missing": (lambda f: rewrite(f, lambda s: s.pop("head.bias")), "Missing key.*head.bias"),
    "a weight too many": (
        lambda f: rewrite(f, lambda s: s.update(more=torch.zeros(1))),
        r"must fit config\.json(.|\n)*Unexpected key.*more",
    ),
    "a weight of another shape": (
        lambda f: rewrite(f, lambda s: s.update({"head.bias": torch.zeros(2)})),
        r"(.|\n)*size mismatch for head.bias",
    ),
}


@pytest.mark.parametrize("name", list(DAMAGES))
def test_damage_is_named(name, tmp_path):
    save_pretrained(make(), tmp_path)
    damage, message = DAMAGES[name]
    damage(tmp_path)
    with pytest.raises(PriorGraphError, match=message):
        load_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "must be in a folder that is there. Got nowhere, which is not"),
        ("./no/where", "must be in a folder that is there"),
        ("", "SKIP"),
        (Path("owner/name"), "must be in a folder that is there"),
        (3, r"must be a path or 'owner/name'. Got 3 \(int\)"),
        (None, r"Got None \(NoneType\)"),
        (b"owner/name", r"\(bytes\)"),
        (__file__, "must be a folder. Got the file"),
    ],
)
def test_places_that_are_none(place, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PriorGraphError, match=message.replace("SKIP", "must have config.json")):
        load_pretrained(place)


def half_cast() -> PriorTransformer:
    model = make()
    model.head.double()
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: torch.nn.Linear(2, 2), "'model' must be a PriorTransformer. Got Linear"),
        (lambda: make().to("meta"), "must have numbers to be saved. Got value_weight on the meta device"),
        (half_cast, "must have one dtype of .* Got head.weight in torch.float64"),
    ],
)
def test_models_that_cannot_be_saved(model, message, tmp_path):
    with pytest.raises(PriorGraphError, match=message):
        save_pretrained(model(), tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(PriorGraphError, match="'folder' must be a folder"):
        save_pretrained(make(), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_without_the_extra(tmp_path, monkeypatch):
    save_pretrained(make(), tmp_path)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    for call in (lambda: save_pretrained(make(), tmp_path / "n"), lambda: load_pretrained(tmp_path)):
        with pytest.raises(ImportError, match=re.escape('pip install "pyg_kpnn[hub]"')):
            call()
    assert not (tmp_path / "n").exists()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: load_pretrained("owner/name"), lambda: push_to_hub(make(), "owner/name")):
        with pytest.raises(ImportError, match=re.escape('pip install "pyg_kpnn[hub]"')):
            call()


# --- the hub --------------------------------------------------------------------------------------


class FakeApi:
    """What HfApi is asked, and what it was given."""

    def __init__(self, has_card: bool = False) -> None:
        self.has_card, self.calls, self.uploaded = has_card, [], {}

    def __call__(self, token=None):
        self.calls.append(("token", token))
        return self

    def create_repo(self, repo_id, *, private, exist_ok):
        self.calls.append(("create_repo", repo_id, private, exist_ok))

    def file_exists(self, repo_id, filename, *, revision):
        return self.has_card

    def upload_folder(self, *, repo_id, folder_path, commit_message, revision, create_pr):
        self.calls.append(("upload_folder", repo_id, commit_message, revision, create_pr))
        self.uploaded = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        request = "a pull request" if create_pr else None
        return SimpleNamespace(commit_url="a commit", pr_url=request)


def test_push(tmp_path, monkeypatch):
    api = FakeApi()
    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    model = make()
    assert model.push_to_hub("owner/name", private=True, token="secret") == "a commit"
    assert api.calls == [
        ("token", "secret"),
        ("create_repo", "owner/name", True, True),
        ("upload_folder", "owner/name", "Upload a pyg_kpnn model", None, False),
    ]
    assert sorted(api.uploaded) == FILES
    for name, content in api.uploaded.items():
        (tmp_path / name).write_bytes(content)
    assert torch.equal(load_pretrained(tmp_path)(x()), model(x()))
    assert push_to_hub(model, "owner/name", create_pr=True) == "a pull request"


def test_push_leaves_a_card_that_is_there(monkeypatch):
    api = FakeApi(has_card=True)
    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    push_to_hub(make(), "owner/name")
    assert sorted(api.uploaded) == FILES[1:]
    push_to_hub(make(), "owner/name", card="new")
    assert api.uploaded["README.md"] == b"new"


@pytest.mark.parametrize("name", ["name", "a/b/c", "", "/name", "owner/na me", "owner/name\n", 3, None])
def test_repositories_that_are_none(name):
    with pytest.raises(PriorGraphError, match="'repo_id' must be 'owner/name'"):
        push_to_hub(make(), name)


def test_a_model_that_cannot_be_saved_makes_no_repository(monkeypatch):
    api = FakeApi()
    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    with pytest.raises(PriorGraphError, match="one dtype"):
        push_to_hub(half_cast(), "owner/name")
    assert api.calls == []


def test_from_the_hub(tmp_path, monkeypatch):
    model = make()
    save_pretrained(model, tmp_path / "snapshot")
    asked = []

    def snapshot_download(repo_id, **options):
        asked.append((repo_id, options))
        return str(tmp_path / "snapshot")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    again = PriorTransformer.from_pretrained("owner/name", revision="main", token=False)
    assert torch.equal(again(x()), model(x()))
    (repo_id, options), *_ = asked
    assert repo_id == "owner/name"
    assert options["allow_patterns"] == ["config.json", "model.safetensors"]  # nothing else is fetched
    assert (options["revision"], options["token"]) == ("main", False)
    load_pretrained("owner/name", local_files_only=True, cache_dir="here")
    assert asked[1][1]["local_files_only"] is True
    assert asked[1][1]["cache_dir"] == "here"
    # A folder of that name comes first.
    save_pretrained(make(num_layers=1), tmp_path / "owner" / "name")
    assert load_pretrained("owner/name").config["num_layers"] == 1
    assert len(asked) == 2


def test_a_hub_that_does_not_answer(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection\nmore words")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    message = r"Got 'owner/name', which is no folder here, and the hub did not give it: no connection$"
    with pytest.raises(PriorGraphError, match=message):
        load_pretrained("owner/name")


def test_card():
    text = model_card(make(edge_bias="sign", readout="class", num_classes=3))
    # 5 edges, of which 3 have +, 1 has -; a to d, é and the isolated z.
    for fact in (
        "| nodes | 6 |",
        "| edges | 5 |",
        "| signs | 3 activating, 1 inhibiting |",
        "| weights | one an edge |",
        f"`{GRAPH.fingerprint}`",
        "| num_classes | `3` |",
    ):
        assert fact in text
    assert huggingface_hub.ModelCard(text).data.library_name == "pyg_kpnn"
    assert "| signs | none |\n| weights | none |" in model_card(make(PriorGraph.from_edges([("a", "b")])))
