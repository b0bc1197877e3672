"""How commands speak: tables and bars for people, one line for an error, JSON for scripts."""

from __future__ import annotations

import json
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


def error_line(error: BaseException) -> str:
    """What went wrong, on one line."""
    return "error: " + " ".join(str(error).split())
