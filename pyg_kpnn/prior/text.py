"""Records of separated text from files of strangers: decoded, counted and bounded.

Whatever a file holds, reading it ends: after ``max_bytes`` of unpacked text, and with no record held in
memory that is longer than :data:`MAX_RECORD`.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from pyg_kpnn.errors import PriorGraphError

__all__ = ["MAX_BYTES", "MAX_RECORD", "Dialect", "read_records"]

#: Most bytes of text, once unpacked, that a reader takes in unless told otherwise: 256 MiB.
MAX_BYTES = 2**28
#: Most characters of one record. Longer ones come from an unclosed quote, or from no table at all.
MAX_RECORD = 2**20


class Dialect(NamedTuple):
    """How the text is written: separator, encoding, and what a comment begins with (None: no comments)."""

    sep: str
    encoding: str = "utf-8-sig"
    comment: str | None = None


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

    def __init__(self, file: io.TextIOWrapper, comment: str | None, name: str) -> None:
        self._file = file
        self._comment = comment
        self._name = name
        self._length = 0
        self.now = 0
        self.first = 0  # 0 between records

    def __iter__(self) -> Iterator[str]:
        # readline with a limit: a file may be one line
        while line := self._file.readline(MAX_RECORD + 1):
            self.now += 1
            if self.now == 1:
                line = line.lstrip("\ufeff")
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
            if not self.first:
                # inside a quoted cell no line is a comment
                if self._comment is not None and line.lstrip().startswith(self._comment):
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


def read_records(
    stream: BinaryIO, name: str, dialect: Dialect, *, zipped: bool = False, max_bytes: int = MAX_BYTES
) -> Iterator[tuple[int, list[str]]]:
    """Cells of every record that is not blank, and the line it begins on, counted from 1.

    Parameters
    ----------
    stream : binary file
        Read to its end, or to the first fault; left open.
    name : str
        What errors call it.
    dialect : Dialect
        Separator, encoding and comment mark.
    zipped : bool, default False
        Whether the bytes are a gzip file.
    max_bytes : int, default MAX_BYTES
        Bytes of text, once unpacked, after which reading ends in an error.

    Yields
    ------
    (int, list of str)
        Cells as they stand, blanks around them included.

    Raises
    ------
    PriorGraphError
        For text that does not decode, NUL characters, faulty quotes, a broken gzip file, and too much.
    """
    raw: Any = gzip.GzipFile(fileobj=stream, mode="rb") if zipped else stream
    buffered = io.BufferedReader(_Bounded(raw, max_bytes, name), 1 << 16)
    try:
        text = io.TextIOWrapper(buffered, encoding=dialect.encoding, newline="")
    except (LookupError, TypeError, ValueError) as error:
        raise PriorGraphError(
            f"'encoding' must be a known text encoding. Got {dialect.encoding!r}."
        ) from error
    lines = _Lines(text, dialect.comment, name)
    try:
        for cells in csv.reader(lines, delimiter=dialect.sep, strict=True):
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield lines.first, cells
            lines.first = 0
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
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise PriorGraphError(f"{name} must be a whole gzip file. Got one that is not ({error}).") from error
