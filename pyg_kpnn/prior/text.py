"""Records of separated text from files of strangers: decoded, counted and bounded.

Whatever a file holds, reading it ends: after ``max_bytes`` of unpacked text, and with no record held in
memory that is longer than :data:`MAX_RECORD`.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from pyg_kpnn.errors import PriorGraphError

__all__ = [
    "MAX_BYTES",
    "MAX_RECORD",
    "WHITESPACE",
    "Dialect",
    "Seen",
    "gzip_faults",
    "read_lines",
    "read_records",
    "unpacked",
]

#: Most bytes of text, once unpacked, that a reader takes in unless told otherwise: 256 MiB.
MAX_BYTES = 2**28
#: Most characters of one record. Longer ones come from an unclosed quote, or from no table at all.
MAX_RECORD = 2**20
#: The separator that stands for any run of blanks; such text has no quotes.
WHITESPACE = "whitespace"
_NOT_BLANK = re.compile(r"[^ \t\r\n]+")


class Dialect(NamedTuple):
    """How the text is written: separator, encoding, what a comment begins with (None: no comments), and how
    many lines come before the table.
    """

    sep: str
    encoding: str = "utf-8-sig"
    comment: str | None = None
    skip: int = 0


@dataclass
class Seen:
    """Lines that hold no record, counted while reading, and how lines end."""

    comments: int = 0
    blanks: int = 0
    skipped: int = 0
    crlf: bool = False


class _Bounded(io.RawIOBase):
    """The bytes of a file up to a limit; one byte more is an error."""

    def __init__(self, raw: Any, limit: int, name: str) -> None:
        self._raw = raw
        self._limit = self._left = limit
        self._name = name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        got: bytes = self._raw.read(min(len(buffer), self._left + 1))
        self._left -= len(got)
        if self._left < 0:
            raise PriorGraphError(
                f"{self._name} must hold at most {self._limit:,} bytes of text, once unpacked. Got more. "
                "If that is what it should hold, pass a larger max_bytes=."
            )
        buffer[: len(got)] = got
        return len(got)


class _Lines:
    """Lines of a file without comments, remembering where the current record began."""

    def __init__(self, file: io.TextIOWrapper, dialect: Dialect, name: str, seen: Seen) -> None:
        self._file = file
        self._comment = dialect.comment
        self._skip = dialect.skip
        self._name = name
        self.seen = seen
        self._length = 0
        self.now = 0
        self.first = 0  # 0 between records

    def __iter__(self) -> Iterator[str]:
        # readline with a limit: a file may be one line
        while line := self._file.readline(MAX_RECORD + 1):
            self.now += 1
            if self.now == 1:
                line = line.lstrip("\ufeff")
                self.seen.crlf = line.endswith("\r\n")
            elif not self.first and line.startswith("\ufeff"):
                raise PriorGraphError(
                    f"Only the first line of {self._name} may begin with a byte order mark. Got one on line "
                    f"{self.now}, as where two files are joined. Remove it."
                )
            if "\0" in line:
                raise PriorGraphError(
                    f"{self._name} must be text without NUL characters. Got one on line {self.now}: the file "
                    "is binary, or text in another encoding, such as UTF-16. Pass encoding=."
                )
            if self.now <= self._skip:
                self.seen.skipped += 1
                continue
            if not self.first:
                # inside a quoted cell no line is a comment
                if self._comment is not None and line.lstrip().startswith(self._comment):
                    self.seen.comments += 1
                    continue
                self.first = self.now
                self._length = 0
            self._length += len(line)
            if self._length > MAX_RECORD:
                raise PriorGraphError(
                    f"A record of {self._name} must have at most {MAX_RECORD:,} characters. Got more in the "
                    f"one that begins on line {self.first}. Close its quotes, or pass another sep=."
                )
            yield line


def unpacked(stream: BinaryIO, name: str, *, zipped: bool, max_bytes: int) -> io.BufferedReader:
    """The bytes of a file, out of gzip where it is zipped; more than ``max_bytes`` of them are an error."""
    raw: Any = gzip.GzipFile(fileobj=stream, mode="rb") if zipped else stream
    return io.BufferedReader(_Bounded(raw, max_bytes, name), 1 << 16)


@contextmanager
def gzip_faults(name: str) -> Iterator[None]:
    """Turn what a broken gzip file raises into the package's error."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise PriorGraphError(f"{name} must be a whole gzip file. Got one that is not ({error}).") from error


def _lines_of(
    stream: BinaryIO, name: str, dialect: Dialect, zipped: bool, max_bytes: int, seen: Seen | None
) -> _Lines:
    buffered = unpacked(stream, name, zipped=zipped, max_bytes=max_bytes)
    try:
        text = io.TextIOWrapper(buffered, encoding=dialect.encoding, newline="")
    except (LookupError, TypeError, ValueError) as error:
        raise PriorGraphError(
            f"'encoding' must be a known text encoding. Got {dialect.encoding!r}."
        ) from error
    return _Lines(text, dialect, name, seen or Seen())


@contextmanager
def _text_faults(lines: _Lines, name: str, dialect: Dialect) -> Iterator[None]:
    try:
        with gzip_faults(name):
            yield
    except csv.Error as error:
        raise PriorGraphError(
            f"{name} must be well-formed separated text. Got a fault in the record that begins on "
            f"line {lines.first or lines.now} ({error}). Correct the line, or pass another sep=."
        ) from error
    except UnicodeError as error:
        where = f", somewhere after line {lines.now}" if lines.now else ""
        raise PriorGraphError(
            f"{name} must be text in {dialect.encoding}. Got bytes that are not{where} ({error}). "
            "Pass encoding=."
        ) from error


def read_records(
    stream: BinaryIO,
    name: str,
    dialect: Dialect,
    *,
    zipped: bool = False,
    max_bytes: int = MAX_BYTES,
    seen: Seen | None = None,
) -> Iterator[tuple[int, list[str]]]:
    """Cells of every record that is not blank, and the line it begins on, counted from 1.

    Parameters
    ----------
    stream : binary file
        Read to its end, or to the first fault; left open.
    name : str
        What errors call it.
    dialect : Dialect
        Separator (or :data:`WHITESPACE`), encoding, comment mark and lines to skip.
    zipped : bool, default False
        Whether the bytes are a gzip file.
    max_bytes : int, default MAX_BYTES
        Bytes of text, once unpacked, after which reading ends in an error.
    seen : Seen, optional
        Filled with counts of the lines that hold no record.

    Yields
    ------
    (int, list of str)
        Cells as they stand, blanks around them included.

    Raises
    ------
    PriorGraphError
        For text that does not decode, NUL characters, faulty quotes, a broken gzip file, and too much.
    """
    lines = _lines_of(stream, name, dialect, zipped, max_bytes, seen)
    with _text_faults(lines, name, dialect):
        if dialect.sep == WHITESPACE:
            records: Iterator[list[str]] = (_NOT_BLANK.findall(line) for line in lines)
        else:
            records = csv.reader(lines, delimiter=dialect.sep, strict=True)
        for cells in records:
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield lines.first, cells
            else:
                lines.seen.blanks += 1
            lines.first = 0


def read_lines(
    stream: BinaryIO,
    name: str,
    dialect: Dialect,
    *,
    zipped: bool = False,
    max_bytes: int = MAX_BYTES,
    seen: Seen | None = None,
) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, without their ends, for formats without quotes; see :func:`read_records`."""
    lines = _lines_of(stream, name, dialect, zipped, max_bytes, seen)
    with _text_faults(lines, name, dialect):
        for line in lines:
            if line.strip():
                yield lines.now, line.rstrip("\r\n")
            else:
                lines.seen.blanks += 1
            lines.first = 0
