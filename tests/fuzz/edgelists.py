"""Odd edgelist files from a seed, and a second opinion on what is in them.

The parser here shares nothing with the package: it goes through the text character by character. It says
which edges a file holds, or that the file has to be refused; what ``read_edgelist`` makes of the file must be
exactly that.
"""

from __future__ import annotations

import gzip
import math
import random
import re
import zlib
from pathlib import Path
from typing import NamedTuple

from pyg_kpnn import PriorGraph, PriorGraphError, read_edgelist

# fmt: off
NAMES = [
    "TP53", "MYC", "Gata1", "gata1", "NA", "nan", "null", "None", "007", "7", "7.0", "MARCH1", "1e5", "True",
    "-inf", "+1", "5'-x", "a-b", "#1", "//", "and", "or", "not", "A or B", "TNF (alpha)", "x,y", "x\ty",
    "x;y", 'say "hi"', '"', "''", "two\nlines", "cr\rlf\r\n.", "\\", "\\n", "=cmd|' /C calc'!A0", "+SUM(A1)",
    "@x", "é", "e\u0301", "ß", "µ", "μ", "名前", "🧬", "a\u200b", "a\xa0b", "\x0b", "a\x0b", "\x1cq",
    "\u2028", "l\u2028l", "n\x85l", "\x7f", "\x1b[31m", "<!ENTITY a 'b'>", "../../x", "L" * 300,
]
# the last ones of both are refused
SIGNS = [
    "+", "-", "1", "-1", "0", "", "?", "activation", "Inhibition", "\u2212", "±", "1.0",
    "maybe", "2", "0_1", "\u0661",
]
WEIGHTS = [
    "1", "0.5", "-2e3", ".25", "1e-400", "-0",
    "", "nan", "inf", "1e999", "1_000", "\u0663", "0x1", "0,5", "x",
]
STRAY = [
    *",;\t\r\n #='\\ab1+-.e_ \x85\u2028\0\ufeffé", '"', '"', '""', "\r\n", "\n\n", "source", "target",
    "not (",
]
# fmt: on
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1252"]

_SIGN_WORDS = {"+": 1, "activation": 1, "-": -1, "\u2212": -1, "inhibition": -1}
_SIGN_WORDS |= dict.fromkeys(["", "?", "+-", "-+", "+/-", "-/+", "±"], 0)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.IGNORECASE)
_LONGEST_CELL = 131_072


class Case(NamedTuple):
    """One file, and how it is to be read."""

    data: bytes
    zipped: bool = False
    sep: str = ","
    header: bool = True
    encoding: str = "utf-8-sig"
    comment: str | None = None
    sign: str | int | None = None
    weight: str | int | None = None
    on_duplicate: str = "error"


Edges = dict[tuple[str, str], tuple[int, float]]


class Refuse(Exception):
    """The file has to be refused; why, in a word."""


# ---------------------------------------------------------------- files


def make_case(seed: int) -> Case:
    """A file from a seed: an edgelist, written one way or another, and often damaged."""
    rng = random.Random(seed)
    sep = rng.choice([",", ",", "\t", "\t", ";", "|", " "])
    header = rng.random() < 0.8
    encoding = rng.choice([*ENCODINGS[:2] * 4, *ENCODINGS])
    comment = rng.choice([None, None, None, "#", "//"])
    names = rng.sample(NAMES, rng.randint(1, 12))
    columns = ["source", "target", *rng.sample(["sign", "weight", "note"], rng.randint(0, 3))]
    if header:
        rng.shuffle(columns)
    rows = [
        [_cell(rng, column, names) for column in columns] for _ in range(rng.choice([0, 1, 1, 2, 3, 5, 8]))
    ]
    quoting = rng.choice([0.0, 0.0, 0.3, 1.0])
    newline = rng.choice(["\n", "\n", "\r\n", "\r"])
    lines = [
        sep.join(_written(rng, cell, sep, quoting) for cell in row)
        for row in ([columns] if header else []) + rows
    ]
    for extra in ("", "  ", *(["# note", '# "', " #", "//"] if comment else [])):
        if rng.random() < 0.1:
            lines.insert(rng.randint(0, len(lines)), extra)
    text = newline.join(lines) + rng.choice([newline, newline, ""])
    for _ in range(rng.choice([0, 0, 0, 0, 1, 1, 2, 4])):
        at = rng.randint(0, len(text))
        text = text[:at] + rng.choice([rng.choice(STRAY), ""]) + text[at + rng.randint(0, 2) :]
    data = _encoded(rng, text, encoding)
    zipped = rng.random() < 0.1
    if zipped:
        data = gzip.compress(data, 1, mtime=0)
        if rng.random() < 0.3:
            data = data[: rng.randint(0, len(data))] + rng.choice([b"", b"\0\0", b"junk"])
    if rng.random() < 0.04:
        at = rng.randint(0, max(0, len(data) - 1))
        data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    where = {name: name if header else columns.index(name) for name in columns}
    return Case(
        data,
        zipped,
        sep,
        header,
        encoding,
        comment,
        where.get("sign") if rng.random() < 0.7 else None,
        where.get("weight") if rng.random() < 0.7 else None,
        rng.choice(["error", "first"]),
    )


def _cell(rng: random.Random, column: str, names: list[str]) -> str:
    if column == "sign":
        return rng.choice(SIGNS[:12] if rng.random() < 0.9 else SIGNS)
    if column == "weight":
        return rng.choice(WEIGHTS[:6] if rng.random() < 0.9 else WEIGHTS)
    name = rng.choice(names)
    if rng.random() < 0.1:
        name = rng.choice([" ", "\t", "\xa0", ""]) + name + rng.choice(["  ", "\u2003", ""])
    return name


def _written(rng: random.Random, cell: str, sep: str, quoting: float) -> str:
    needs = any(mark in cell for mark in (sep, '"', "\n", "\r"))
    if rng.random() < quoting or (needs and rng.random() < 0.97):
        return '"' + cell.replace('"', '""') + '"'
    return cell


def _encoded(rng: random.Random, text: str, encoding: str) -> bytes:
    if rng.random() < 0.03:  # another encoding than is said
        encoding = rng.choice(ENCODINGS)
    if rng.random() < 0.02:
        text = "\ufeff" + text
    return text.encode(encoding, "replace")


# ---------------------------------------------------------------- second opinion


def opinion(case: Case) -> Edges:
    """Edges of a file with sign and weight (0 and 1 where not read); raises :class:`Refuse`."""
    data = case.data
    try:
        data = gzip.decompress(data) if case.zipped else data
        if case.encoding == "utf-16" and data[:2] not in (b"\xff\xfe", b"\xfe\xff"):
            raise Refuse("bytes")  # its order is anybody's guess
        text = data.decode(case.encoding)
    except (OSError, EOFError, zlib.error, UnicodeError) as error:
        raise Refuse("bytes") from error
    records = [[_strip(cell) for cell in cells] for cells in _records(text, case.sep, case.comment)]
    records = [cells for cells in records if cells != [""]]
    if not records:
        raise Refuse("nothing")
    names = records.pop(0) if case.header else list(range(len(records[0])))
    roles = {"source": "source", "target": "target", "sign": case.sign, "weight": case.weight}
    if not case.header:
        roles |= {"source": 0, "target": 1}
    at = {}
    for role, label in roles.items():
        if label is not None:
            if names.count(label) != 1:
                raise Refuse("column")
            at[role] = names.index(label)
    edges: Edges = {}
    for cells in records:
        if len(cells) != len(names):
            raise Refuse("ragged")
        pair = cells[at["source"]], cells[at["target"]]
        if "" in pair:
            raise Refuse("empty name")
        sign = _sign(cells[at["sign"]]) if "sign" in at else 0
        weight = _weight(cells[at["weight"]]) if "weight" in at else 1.0
        if pair in edges:
            if case.on_duplicate == "error":
                raise Refuse("twice")
            known, weight = edges[pair]
            if known * sign < 0:
                raise Refuse("both signs")
            sign = sign or known
        edges[pair] = sign, weight
    if not edges:
        raise Refuse("no edge")
    return edges


def _records(text: str, sep: str, comment: str | None) -> list[list[str]]:
    """RFC 4180, and no quote that opens or closes inside a cell."""
    text = text.lstrip("\ufeff")
    if "\0" in text:
        raise Refuse("NUL")
    records: list[list[str]] = []
    at = 0
    while at < len(text):
        if at and text[at] == "\ufeff":
            raise Refuse("inner byte order mark")
        end = re.compile("\r\n|\r|\n|$(?![\r\n])").search(text, at)
        assert end is not None
        if comment is not None and text[at : end.start()].lstrip().startswith(comment):
            at = max(end.end(), at + 1)
            continue
        cells: list[str] = []
        more = True
        while more:
            cell, at = _quoted(text, at) if text[at : at + 1] == '"' else _plain(text, at, sep)
            if len(cell) > _LONGEST_CELL:
                raise Refuse("long")
            cells.append(cell)
            more = text[at : at + 1] == sep
            if more:
                at += 1
            elif text[at : at + 2] == "\r\n":
                at += 2
            elif text[at : at + 1] in ("\r", "\n", ""):
                at += 1
            else:
                raise Refuse("quote")
        records.append(cells)
    return records


def _plain(text: str, at: int, sep: str) -> tuple[str, int]:
    start = at
    while at < len(text) and text[at] not in (sep, "\r", "\n"):
        at += 1
    return text[start:at], at


def _quoted(text: str, at: int) -> tuple[str, int]:
    cell = ""
    at += 1
    while True:
        close = text.find('"', at)
        if close < 0:
            raise Refuse("open quote")
        cell += text[at:close]
        if text[close + 1 : close + 2] != '"':
            return cell, close + 1
        cell += '"'
        at = close + 2


def _strip(cell: str) -> str:
    while cell and cell[0].isspace():
        cell = cell[1:]
    while cell and cell[-1].isspace():
        cell = cell[:-1]
    return cell


def _sign(cell: str) -> int:
    if cell.lower() in _SIGN_WORDS:
        return _SIGN_WORDS[cell.lower()]
    if not _NUMBER.fullmatch(cell) or float(cell) not in (-1, 0, 1):
        raise Refuse("sign")
    return int(float(cell))


def _weight(cell: str) -> float:
    if not _NUMBER.fullmatch(cell) or not math.isfinite(float(cell)):
        raise Refuse("weight")
    return float(cell) + 0.0


# ---------------------------------------------------------------- comparison


def read(case: Case, folder: Path) -> PriorGraph:
    """The file of a case, read by the package."""
    path = folder / ("case.csv.gz" if case.zipped else "case.csv")
    path.write_bytes(case.data)
    try:
        return read_edgelist(
            path,
            sep=case.sep,
            header=case.header,
            encoding=case.encoding,
            comment=case.comment,
            sign=case.sign,
            weight=case.weight,
            on_duplicate=case.on_duplicate,
        )
    finally:
        path.unlink()  # many file systems are slow to cut a file that is there


def check(case: Case, folder: Path) -> str:
    """Raise AssertionError unless the package agrees; else what became of the file, in a word."""
    expected: Edges | None = None
    try:
        expected = opinion(case)
        why = "edges"
    except Refuse as refusal:
        why = str(refusal)
    try:
        graph = read(case, folder)
    except PriorGraphError as error:
        message = str(error)
        assert message, case
        assert len(message) < 4_000, (len(message), case)
        # Whether a table reads like Boolean rules is a guess, not a fact of the format.
        if expected is not None and "Boolean rule" in message:
            assert any(re.search(r"\b(?:and|or|not)\b", target) for _, target in expected), (message, case)
            return "rules"
        assert expected is None, (message, expected, case)
        return why
    assert expected is not None, (why, graph.edges, case)
    assert list(graph.edges) == sorted(expected), (graph.edges, expected, case)
    found = [expected[edge] for edge in graph.edges]
    signs = [0] * len(found) if graph.sign is None else graph.sign.tolist()
    weights = [1.0] * len(found) if graph.weight is None else graph.weight.tolist()
    assert list(zip(signs, weights, strict=True)) == found, (graph, expected, case)
    return why
