"""How commands speak: tables and bars for people, one line for an error, JSON for scripts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["error_line", "notes", "print_json", "print_table", "wrote"]

# Results go to stdout, everything else to stderr: a pipe gets results alone.
_out, notes = Console(), Console(stderr=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout; NaN, which JSON does not have, as null."""
    json.dump(_plain(value), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and value != value else value


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on stdout; numbers to the right, four digits."""
    table = Table(title=escape(title), title_justify="left", title_style="bold")
    for position, name in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[position], (int, float)) for row in rows)
        table.add_column(escape(name), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(f"{cell:.4g}" if isinstance(cell, float) else str(cell)) for cell in row))
    _out.print(table)


def wrote(folder: Path) -> None:
    """Say what is in a folder of results."""
    names = sorted(path.name for path in folder.iterdir())
    notes.print(f"Wrote {folder}: {', '.join(names)}", highlight=False)


def note(text: str) -> None:
    """A remark on stderr."""
    notes.print(text, highlight=False, markup=False, soft_wrap=True)


def error_line(error: BaseException) -> str:
    """What went wrong, on one line."""
    lines = [" ".join(line.split()) for line in in_shell_words(str(error)).splitlines()]
    return "error: " + "; ".join(line for line in lines if line)


# What errors of the library advise, as the command line says it.
_WORDS = (
    (r"\bgraph\.rename\(match\(\.\.\.\)\.renames\(\)\)|\bmatch\(\.\.\.\)\.renames\(\)", "--rename auto"),
    (r"\bon_duplicate='first'", "--keep-first"),
    (r"\b(genes_in_rows|drop_self_loops)=True", lambda found: f"--{found[1].replace('_', '-')}"),
    (
        r"\b(source|target|sign|weight|missing|missing_labels|max_loss|sep)=(?:'([^']*)')?",
        lambda found: f"--{found[1].replace('_', '-')}" + (f" {found[2]}" if found[2] else ""),
    ),
)


def in_shell_words(text: str) -> str:
    """Advice such as ``missing='mask'`` as options of the commands."""
    for python, shell in _WORDS:
        text = re.sub(python, shell, text)
    return text
