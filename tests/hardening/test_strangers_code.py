"""Code in files of strangers: rules that are more than rules, and what the package never does with a file."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import pyg_kpnn
from pyg_kpnn import PriorGraphError
from pyg_kpnn.datasets.rules import BooleanNetwork

SOURCES = sorted(Path(pyg_kpnn.__file__).parent.rglob("*.py"))


# ---------------------------------------------------------------- rules


@pytest.mark.parametrize(
    "rule",
    [
        "A # and B",
        "ﬁb",  # NFKC makes it fib, another gene
        "not " * 500 + "A",
        "not " * 100_000 + "A",
        "(" * 100_000 + "A" + ")" * 100_000,
        "A and (B or " * 60 + "A" + ")" * 60,
        "__import__('os').mkdir('mark')",
        "A.__class__",
        "[A for A in B]",
        "A if B else A",
        "A and 1",
        "A\0",
        "A\ud800",
        "lambda: A",
        "(A := B)",
        "f'{A}'",
        "1" * 5_000,
        "A\nB",
        "",
    ],
)
def test_rules_that_are_more_than_rules_are_refused(rule, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PriorGraphError) as refused:
        BooleanNetwork({"A": rule, "B": "A", "ﬁb": "A", "fib": "B"})
    assert len(str(refused.value)) < 1_000
    assert not list(tmp_path.iterdir())


def test_a_rule_as_deep_as_allowed_is_evaluated():
    network = BooleanNetwork({"A": "not " * 98 + "B", "B": "A"})
    assert network.update(np.array([[False], [True]])).tolist() == [[True], [False]]
    assert network.edges() == (("A", "B", 1), ("B", "A", 1))


# ---------------------------------------------------------------- what the package never does


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module


def test_the_package_unpacks_no_archive_and_loads_no_pickle_and_reads_xml_in_one_place():
    """Then no path of an archive can lead outside, no entity can grow, and no file can run code."""
    banned = {"pickle", "marshal", "shelve", "dill", "joblib", "tarfile", "xml", "lxml", "torch.jit"}
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = {name for name in imported(tree) if name in banned or name.split(".")[0] in banned}
        found.discard("xml.sax.saxutils")  # it escapes what is written, and parses nothing
        if path.name == "markup.py":  # expat, told to stop at the first entity or DOCTYPE
            found.discard("xml.parsers")
        # two only compare checksums; raw.py reads single members of archives into memory, up to a bound
        if path.name not in {"cache.py", "module.py", "raw.py"}:
            found |= {name for name in imported(tree) if name == "zipfile"}
        assert not found, (path, found)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called == "eval" and isinstance(node.func, ast.Attribute):  # evaluation mode of a module
                continue
            assert called not in {"eval", "exec", "read_pickle", "extract", "extractall", "unpack_archive"}, (
                path
            )
            options = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
            assert not options.get("allow_pickle"), path
            if called == "load" and ast.unparse(node.func) == "torch.load":
                assert options.get("weights_only") is True, path
