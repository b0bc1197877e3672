"""Tables of accuracy.py out of its rows: means with standard deviations, sizes, times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from accuracy_jobs import Row, Task
from common import markdown_table

TWO_STANDARD_ERRORS = 2.0


def tables(task: Task, rows: Sequence[Row]) -> str:
    """One Markdown table a dataset, in the order in which the rows come."""
    found = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        lines = [line for row in rows if row["dataset"] == dataset for line in read_apart(row)]
        found.append(_table(task, dataset, lines))
    return "\n\n".join(found)


def read_apart(row: Row) -> list[Row]:
    """A row for each way in which a model was read; its scores are then called ``way/score``."""
    ways: dict[str, dict[str, float]] = {}
    for name, value in row["test"].items():
        way, _, score = name.rpartition("/")
        ways.setdefault(way, {})[score] = value
    return [
        {**row, "test": scores, "line": f"{row['model']}, {way}" if way else row["model"]}
        for way, scores in ways.items()
    ]


def _table(task: Task, dataset: str, rows: Sequence[Row]) -> str:
    metrics = list(dict.fromkeys(metric for row in rows for metric in row["test"]))
    lines = []
    for line in dict.fromkeys(row["line"] for row in rows):
        mine = [row for row in rows if row["line"] == line]
        size = mean(row["parameters"] for row in mine)
        lines.append(
            [
                line,
                *(spread([row["test"][key] for row in mine], task) for key in metrics),
                against_reference(task, line, rows),
                str(len(mine)),
                f"{size:,.0f}" if size else "–",
                f"{mean(row['seconds'] for row in mine):.1f}",
                f"{mean(row['cpu_seconds'] for row in mine):.1f}",
                settings(task, mine[0]),
            ]
        )
    against = f"less {task.reference}"
    header = [dataset, *metrics, against, "fits", "parameters", "wall, s", "CPU, s", "chosen"]
    if all(line[-1] == "–" for line in lines):  # nothing was there to choose
        header, lines = header[:-1], [line[:-1] for line in lines]
    return markdown_table(header, lines)


def shown_as(task: Task) -> tuple[float, int]:
    """What scores are multiplied by, and digits behind the point."""
    return (100.0, 1) if task.percent else (1.0, 3)


def spread(values: Sequence[float], task: Task) -> str:
    """Mean ± standard deviation (n - 1 below)."""
    scale, digits = shown_as(task)
    deviation = stdev(values) if len(values) > 1 else 0.0
    return f"{scale * mean(values):.{digits}f} ± {scale * deviation:.{digits}f}"


def difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Mean of the others less our mean, and its standard error from both spreads."""
    error = math.sqrt(sum(stdev(each) ** 2 / len(each) if len(each) > 1 else 0.0 for each in (ours, theirs)))
    return mean(theirs) - mean(ours), error


def against_reference(task: Task, line: str, rows: Sequence[Row]) -> str:
    """The headline score less the reference's, bold where that is more than two standard errors."""
    ours, theirs = (
        [row["test"][task.headline] for row in rows if row["line"] == name] for name in (task.reference, line)
    )
    if line == task.reference or not ours:
        return "–"
    gap, error = difference(ours, theirs)
    scale, digits = shown_as(task)
    text = f"{scale * gap:+.{digits}f}"
    return f"**{text}**" if abs(gap) > TWO_STANDARD_ERRORS * error > 0.0 else text


def settings(task: Task, row: Row) -> str:
    """What was chosen: the settings in which the configurations of the model differ."""
    configs = task.grid(row["model"], False)
    varied = [key for key in row["config"] if len({str(config.get(key)) for config in configs}) > 1]
    return ", ".join(f"{key.replace('_', ' ')} {row['config'][key]:g}" for key in varied) or "–"


def write_between_markers(path: Path, written: Mapping[str, str]) -> None:
    """Replace what stands between ``<!-- name -->`` and ``<!-- /name -->`` in a page."""
    text = path.read_text(encoding="utf-8")
    for name, table in written.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
            raise SystemExit(f"{path} must have {begin} and, after it, {end}, once each.")
        before, rest = text.split(begin)
        text = before + f"{begin}\n\n{table}\n\n" + rest[rest.index(end) :]
    path.write_text(text, encoding="utf-8")
