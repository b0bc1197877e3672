"""The page of promises names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "promises.md"


def named() -> list[tuple[str, str]]:
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(r"`((?:\w+/)*test_\w+\.py)(?:::(\w+))?`", text)


def test_every_test_on_the_page_exists():
    assert len(named()) > 50
    for file, name in named():
        path = HERE / file
        assert path.is_file(), file
        if name:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert name in functions, f"{file}::{name}"


def test_every_suite_of_hardening_is_on_the_page():
    suites = {f"hardening/{path.name}" for path in (HERE / "hardening").glob("test_*.py")}
    assert suites <= {file for file, _ in named()}
