"""Raw files of the datasets: downloaded once, verified, and whole or not there at all.

What arrives from an address is bounded in size and held against a checksum. Where the publisher states one it
is written down here. Where none is known, the SHA-256 of the first download is noted in a file beside the raw
one, and every later reading and download must give the same: that shows a change, not who made the first
file.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.names import listing, show
from pyg_kpnn.prior.output import whole

__all__ = ["Source", "digest", "fetch", "fetch_member", "folder_of"]

_CHUNK = 1 << 20
_SECONDS = 60  # without a byte, before a download is given up


class Source(NamedTuple):
    """A file at a public address.

    Attributes
    ----------
    url : str
        Its address.
    max_bytes : int
        Most bytes to take.
    checksum : str, optional
        What its publisher states, such as ``"sha256:4473c9…"`` or ``"md5:52581e…"``. Without it the first
        download is trusted, and its SHA-256 noted in a file beside it.
    """

    url: str
    max_bytes: int
    checksum: str | None = None


class _KeepHttps(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never out of encryption, and only to other pages."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        if not newurl.startswith(("https://", "http://") if req.type == "http" else "https://"):
            why = f"a redirect out of encryption, to {show(newurl)}"
            raise urllib.error.HTTPError(req.full_url, code, why, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def folder_of(root: Any) -> str:
    """The folder a dataset keeps its files in, as torch_geometric wants it."""
    if not isinstance(root, (str, os.PathLike)) or not os.fspath(root):
        raise PriorGraphError(
            f"'root' must be a folder, as the raw files are kept there. Got {show(root)}. Pass a path."
        )
    return os.path.expanduser(os.fspath(root))


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _noted(path: Path) -> str:
    """Checksum noted at the first download of a file, empty where there was none."""
    return _note(path).read_text(encoding="utf-8").strip() if _note(path).exists() else ""


def digest(path: Path) -> str:
    """SHA-256 of a raw file, held against the note of its first download where there is one.

    Raises
    ------
    PriorGraphError
        If the file has changed since its download.
    """
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            total.update(chunk)
    found, noted = total.hexdigest(), _noted(path)
    if noted not in ("", found):
        raise PriorGraphError(
            f"{path} must be as it was downloaded, with SHA-256 {noted}. Got {found}. Delete the file to "
            f"download it again, or delete {_note(path).name} if the change is yours."
        )
    return found


def fetch(source: Source, path: Path) -> Path:
    """Download a file, unless it is there.

    Parameters
    ----------
    source : Source
        Address, bound and checksum.
    path : Path
        Where the file shall lie. A file already there is taken, and need not be the published one; it only
        must not have changed since a download whose checksum was noted.

    Returns
    -------
    Path
        ``path``.

    Raises
    ------
    PriorGraphError
        No connection, too many bytes, fewer than announced, another checksum, or a redirect out of
        encryption; nothing is left at ``path`` then.
    """
    if path.exists():
        digest(path)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    noted = _noted(path)
    kind, _, wanted = (source.checksum or f"sha256:{noted}").partition(":")
    with whole(path) as file:
        found = _receive(source, file, path, kind)
        if wanted not in ("", found):
            why = "its publisher states" if source.checksum else "its first download had"
            raise PriorGraphError(
                f"{path.name} from {source.url} must have the {kind.upper()} that {why}, {wanted}. Got "
                f"{found}. The file was dropped."
            )
        if not wanted:
            with whole(_note(path)) as note:
                note.write(f"{found}\n".encode())
    return path


def _receive(source: Source, file: BinaryIO, path: Path, kind: str) -> str:
    """Write the bytes of an address to a file, and return their checksum."""
    # torch_geometric's download_url neither checks certificates nor bounds nor verifies what it gets
    opener = urllib.request.build_opener(_KeepHttps)
    request = urllib.request.Request(source.url, headers={"User-Agent": "pyg_kpnn"})
    total = hashlib.new(kind, usedforsecurity=False)
    count = 0
    try:
        with opener.open(request, timeout=_SECONDS) as response:
            announced = int(response.headers.get("Content-Length") or 0)
            while max(count, announced) <= source.max_bytes and (chunk := response.read(_CHUNK)):
                count += len(chunk)
                total.update(chunk)
                file.write(chunk)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise PriorGraphError(
            f"{path.name} must be downloaded from {source.url}. Got {type(error).__name__}: {error}. "
            f"Without a connection, put the file at {path}."
        ) from error
    if max(count, announced) > source.max_bytes:
        raise PriorGraphError(
            f"{path.name} from {source.url} must have at most {source.max_bytes:,} bytes. Got more: it is "
            "another file."
        )
    if count < announced:
        raise PriorGraphError(
            f"{path.name} from {source.url} must arrive whole, {announced:,} bytes. Got {count:,}. Try again."
        )
    return total.hexdigest()


def fetch_member(source: Source, archive: Path, tail: str, path: Path, max_bytes: int) -> None:
    """Write one file of a zip archive, which is downloaded unless it is there.

    Nothing is unpacked to where the archive says.

    Parameters
    ----------
    source : Source
        Of the archive.
    archive : Path
        Where the archive lies, or shall lie.
    tail : str
        Last parts of the member's path; exactly one member must end in them.
    path : Path
        Where the member shall lie.
    max_bytes : int
        Most bytes of it, once unpacked.

    Raises
    ------
    PriorGraphError
        As :func:`fetch`; no zip file, no such member or several, one that is larger or encrypted, or a
        damaged one.
    """
    fetch(source, archive)
    wanted = tail.split("/")
    try:
        with zipfile.ZipFile(archive) as files:
            found = [info for info in files.infolist() if info.filename.split("/")[-len(wanted) :] == wanted]
            if len(found) != 1:
                what = listing((show(info.filename) for info in found), len(found)) or "none"
                raise PriorGraphError(f"{archive.name} must hold one file that ends in {tail!r}. Got {what}.")
            # what the directory states is not what has to come out: the bound is on what does
            with files.open(found[0]) as stream:
                content = stream.read(max_bytes + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise PriorGraphError(
            f"{archive} must be a whole zip file. Got one that is not ({error}). Delete it to download it "
            "again."
        ) from error
    if len(content) > max_bytes:
        raise PriorGraphError(
            f"{tail} in {archive.name} must have at most {max_bytes:,} bytes, once unpacked. Got more."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as file:
        file.write(content)
