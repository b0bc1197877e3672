"""Raw files: downloaded whole, verified and bounded, or not there; one member of a zip, and nothing else."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
import warnings
import zipfile

import pytest

from pyg_kpnn.datasets import raw
from pyg_kpnn.datasets.matrices import read_matrix
from pyg_kpnn.datasets.raw import Source, digest, fetch, fetch_member, folder_of
from pyg_kpnn.errors import PriorGraphError

BODY = b"a,b\n1,2\n" * 40
SHA = hashlib.sha256(BODY).hexdigest()
MD5 = hashlib.md5(BODY).hexdigest()
WRONG = "0" * 64


def left(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# ---------------------------------------------------------------- downloads


@pytest.mark.parametrize("checksum", [f"sha256:{SHA}", f"md5:{MD5}", None])
def test_a_download_with_the_right_checksum(site, tmp_path, checksum):
    path = tmp_path / "new" / "raw" / "file.csv"
    source = Source(site.put("/file", BODY), len(BODY), checksum)
    assert fetch(source, path) == path
    assert path.read_bytes() == BODY
    # what no checksum is known of has that of its first download beside it
    noted = [] if checksum else ["new/raw/file.csv.sha256"]
    assert left(tmp_path) == ["new/raw/file.csv", *noted]
    if noted:
        assert (tmp_path / noted[0]).read_text().strip() == SHA
    assert fetch(source, path) == path
    assert site.asked == ["/file"]  # there already


def test_a_file_that_is_there_is_used_without_a_connection(tmp_path):
    (tmp_path / "file.csv").write_bytes(b"mine")
    fetch(Source("http://127.0.0.1:9/nowhere", 10, f"sha256:{WRONG}"), tmp_path / "file.csv")
    assert left(tmp_path) == ["file.csv"]
    assert digest(tmp_path / "file.csv") == hashlib.sha256(b"mine").hexdigest()


@pytest.mark.parametrize(("kind", "wanted", "got"), [("sha256", WRONG, SHA), ("md5", "1" * 32, MD5)])
def test_another_checksum_drops_the_file_and_names_both(site, tmp_path, kind, wanted, got):
    source = Source(site.put("/file", BODY), 10_000, f"{kind}:{wanted}")
    with pytest.raises(
        PriorGraphError, match=rf"{kind.upper()} that its publisher states, {wanted}\. Got {got}"
    ):
        fetch(source, tmp_path / "file.csv")
    assert left(tmp_path) == []


def test_a_first_download_is_trusted_and_a_later_one_must_be_the_same(site, tmp_path):
    path = tmp_path / "file.csv"
    source = Source(site.put("/file", BODY), 10_000)
    assert digest(fetch(source, path)) == SHA
    path.write_bytes(b"changed")
    with pytest.raises(
        PriorGraphError, match=rf"as it was downloaded, with SHA-256 {SHA}.*file\.csv\.sha256"
    ):
        digest(path)
    with pytest.raises(PriorGraphError, match="as it was downloaded"):
        fetch(source, path)
    path.unlink()
    site.put("/file", b"another")
    with pytest.raises(PriorGraphError, match=rf"its first download had, {SHA}\. Got "):
        fetch(source, path)
    assert left(tmp_path) == ["file.csv.sha256"]
    (tmp_path / "file.csv.sha256").unlink()
    assert fetch(source, path).read_bytes() == b"another"


def test_fewer_bytes_than_announced_leave_nothing(site, tmp_path):
    url = site.put("/file", BODY, length=len(BODY) + 5)
    with pytest.raises(PriorGraphError, match=r"whole, 325 bytes\. Got 320"):
        fetch(Source(url, 10_000), tmp_path / "file.csv")
    assert left(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, http.client.IncompleteRead(b"")])
def test_an_interruption_leaves_nothing_half_written(site, tmp_path, monkeypatch, error):
    read = http.client.HTTPResponse.read
    calls = []

    def half(self, amount=None):
        calls.append(amount)
        if len(calls) > 1:
            raise error
        return read(self, 100)

    monkeypatch.setattr(http.client.HTTPResponse, "read", half)
    kept = tmp_path / "other.csv"
    kept.write_bytes(b"kept")
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else PriorGraphError):
        fetch(Source(site.put("/file", BODY), 10_000), tmp_path / "file.csv")
    assert len(calls) == 2
    assert left(tmp_path) == ["other.csv"]


@pytest.mark.parametrize("announce", [True, False])
def test_more_bytes_than_allowed_are_not_taken(site, tmp_path, announce, monkeypatch):
    monkeypatch.setattr(raw, "_CHUNK", 64)
    taken = []
    read = http.client.HTTPResponse.read
    monkeypatch.setattr(
        http.client.HTTPResponse, "read", lambda self, amount: taken.append(amount) or read(self, amount)
    )
    url = site.put("/file", BODY * 1_000, announce=announce)
    with pytest.raises(PriorGraphError, match=r"at most 319 bytes\. Got more"):
        fetch(Source(url, 319), tmp_path / "file.csv")
    assert left(tmp_path) == []
    assert sum(taken) == (0 if announce else 320)


def test_the_bound_itself_is_allowed(site, tmp_path):
    fetch(Source(site.put("/file", BODY, announce=False), len(BODY)), tmp_path / "file.csv")
    assert (tmp_path / "file.csv").read_bytes() == BODY


def test_a_redirect_is_followed(site, tmp_path):
    url = site.put("/old", b"", location=site.put("/file", BODY))
    fetch(Source(url, 10_000, f"sha256:{SHA}"), tmp_path / "file.csv")
    assert site.asked == ["/old", "/file"]


@pytest.mark.parametrize("place", ["file:///etc/hostname", "ftp://127.0.0.1/file", "data:text/plain,x"])
def test_a_redirect_to_something_else_is_refused(site, tmp_path, place):
    with pytest.raises(
        PriorGraphError, match=r"a redirect out of encryption|Redirection to url .* not allowed"
    ):
        fetch(Source(site.put("/old", b"", location=place), 10_000), tmp_path / "file.csv")
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("start", "end", "good"),
    [("https", "https", True), ("https", "http", False), ("http", "https", True), ("http", "http", True)],
)
def test_a_redirect_never_leaves_encryption(start, end, good):
    request = urllib.request.Request(f"{start}://example.org/a")
    follow = raw._KeepHttps().redirect_request
    arguments = (request, None, 302, "Found", {}, f"{end}://example.org/b")
    if good:
        assert follow(*arguments).full_url == f"{end}://example.org/b"
    else:
        with pytest.raises(urllib.error.HTTPError, match=r"out of encryption, to 'http://example\.org/b'"):
            follow(*arguments)


@pytest.mark.parametrize("name", ["/gone", "no server"])
def test_no_connection_says_where_to_put_the_file(site, tmp_path, name):
    url = "http://127.0.0.1:9/file" if name == "no server" else f"{site.address}{name}"
    with pytest.raises(PriorGraphError) as refused:
        fetch(Source(url, 10), tmp_path / "file.csv")
    assert url in str(refused.value)
    assert f"put the file at {tmp_path / 'file.csv'}" in str(refused.value)
    assert left(tmp_path) == []


def test_a_root_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder_of("~/here") == str(tmp_path / "here")
    assert folder_of(tmp_path / "~") == str(tmp_path / "~")


@pytest.mark.parametrize("root", [None, "", 3, ["a"]])
def test_a_root_that_is_no_folder(root):
    with pytest.raises(PriorGraphError, match="'root' must be a folder"):
        folder_of(root)


# ---------------------------------------------------------------- members of a zip file


def read_member(archive, tail, most):
    """What one member's file holds, wherever the archive wants it to be; nothing is written without it."""
    place = archive.parent / "out" / "file"
    try:
        fetch_member(Source("http://127.0.0.1:9/nowhere", 10), archive, tail, place, most)
    except PriorGraphError:
        assert left(place.parent) == []
        raise
    content = place.read_bytes()
    place.unlink()
    return content


def zipped(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a name twice
        for name, content in members:
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_one_member_is_read(tmp_path, compression):
    members = [
        ("top/in/a.csv", BODY),
        ("top/in/b.csv", b"b"),
        ("top/win/a.csv", b"not a folder 'in'"),
        ("a.csv", b"too short"),
        ("__MACOSX/top/in/._a.csv", b"junk"),
    ]
    archive = zipped(tmp_path / "x.zip", members, compression)
    assert read_member(archive, "in/a.csv", len(BODY)) == BODY
    assert left(tmp_path) == ["x.zip"]


def test_a_member_that_leads_outside_is_written_nowhere(tmp_path):
    names = ["../../outside/in/a.csv", "/abs/in/b.csv", "C:\\in\\c.csv", "top/in/../../../d.csv"]
    archive = tmp_path / "deep" / "x.zip"
    archive.parent.mkdir()
    zipped(archive, [(name, name.encode()) for name in names])
    assert read_member(archive, "in/a.csv", 100) == names[0].encode()  # contents, under a name we choose
    assert read_member(archive, "in/b.csv", 100) == names[1].encode()
    with pytest.raises(PriorGraphError, match="Got none"):
        read_member(archive, "in/c.csv", 100)
    assert left(tmp_path) == ["deep/x.zip"]


def test_an_interrupted_member_is_not_there(tmp_path, monkeypatch):
    archive = zipped(tmp_path / "x.zip", [("in/a.csv", BODY)])
    place = tmp_path / "a.csv"
    place.write_bytes(b"old")

    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        fetch_member(Source("http://127.0.0.1:9/nowhere", 10), archive, "in/a.csv", place, 1_000)
    assert (left(tmp_path), place.read_bytes()) == (["a.csv", "x.zip"], b"old")


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([("in/b.csv", b"")], r"one file that ends in 'in/a\.csv'. Got none"),
        ([("x/in/a.csv", b"1"), ("y/in/a.csv", b"2")], r"Got 'x/in/a\.csv', 'y/in/a\.csv'"),
        ([("in/a.csv", b"1"), ("in/a.csv", b"2")], "Got 'in/a.csv', 'in/a.csv'"),
        ([("in/a.csv", BODY + b"x")], "at most 320 bytes, once unpacked. Got more"),
        ([("in/a.csv", bytes(50_000_000))], "at most 320 bytes, once unpacked. Got more"),
    ],
)
def test_members_that_are_refused(tmp_path, members, text):
    archive = zipped(tmp_path / "x.zip", members)
    with pytest.raises(PriorGraphError, match=text):
        read_member(archive, "in/a.csv", 320)


def test_a_bomb_is_not_unpacked_further_than_allowed(tmp_path, monkeypatch):
    archive = zipped(tmp_path / "x.zip", [("in/a.csv", bytes(50_000_000))])
    assert archive.stat().st_size < 100_000
    came = []
    read = zipfile.ZipExtFile.read

    def count(self, amount=-1):
        came.append(amount)
        return read(self, amount)

    monkeypatch.setattr(zipfile.ZipExtFile, "read", count)
    with pytest.raises(PriorGraphError, match="Got more"):
        read_member(archive, "in/a.csv", 1_000)
    assert came == [1_001]


def patched(path, at, value, width):
    """A zip file with a number of its directory entry written over."""
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\1\2")
    content[entry + at : entry + at + width] = value.to_bytes(width, "little")
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("at", "value", "width"),
    [
        (24, 10, 4),  # says fewer bytes than come out
        (16, 12345, 4),  # another checksum
        (8, 1, 2),  # encrypted
        (10, 99, 2),  # a compression nobody knows
        (42, 5, 4),  # begins elsewhere
    ],
)
def test_an_archive_that_lies_is_refused(tmp_path, at, value, width):
    archive = zipped(tmp_path / "x.zip", [("in/a.csv", BODY)])
    patched(archive, at, value, width)
    with pytest.raises(PriorGraphError, match="must be a whole zip file"):
        read_member(archive, "in/a.csv", 10_000)


def test_contents_that_do_not_unpack(tmp_path):
    archive = zipped(tmp_path / "x.zip", [("in/a.csv", bytes(range(256)) * 20)])
    content = bytearray(archive.read_bytes())
    content[40:60] = b"\xff" * 20  # inside the compressed bytes
    archive.write_bytes(content)
    with pytest.raises(PriorGraphError, match="must be a whole zip file"):
        read_member(archive, "in/a.csv", 10_000)


def test_contents_that_go_on_past_the_end_of_the_file(tmp_path):
    archive = zipped(tmp_path / "x.zip", [("in/a.csv", BODY)], zipfile.ZIP_STORED)
    for at in (20, 24):  # bytes packed and unpacked, as the directory states them
        patched(archive, at, 5_000, 4)
    with pytest.raises(PriorGraphError, match="must be a whole zip file"):
        read_member(archive, "in/a.csv", 10_000)


@pytest.mark.parametrize("content", [b"", b"<html>sign in</html>", "half"])
def test_what_is_no_zip_file(tmp_path, content):
    path = tmp_path / "x.zip"
    whole = zipped(path, [("in/a.csv", BODY)]).read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    with pytest.raises(PriorGraphError, match=r"must be a whole zip file.*Delete it"):
        read_member(path, "in/a.csv", 10_000)


# ---------------------------------------------------------------- tables of numbers


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (",a,b\nx,1,NA\ny,3,4\n", ("x", "y")),
        ("a,b\nx,1,\ny,3,4\n", ("x", "y")),  # as R writes it
        ('"a","b"\r\n\r\n1,NA\r\n\r\n3,4\r\n', ()),
    ],
)
def test_tables_with_and_without_row_names(tmp_path, text, rows):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    table = read_matrix(path, ",", missing=True)
    assert (table.columns, table.rows) == (("a", "b"), rows)
    assert table.values.shape == (2, 2)
    assert table.values[0, 0] == 1
    assert table.values[0, 1] != table.values[0, 1]
    assert table.values[1].tolist() == [3, 4]
    assert table.take(["b", "a"], "t.csv")[1].tolist() == [4, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one row. Got none"),
        ("a,b\n", "at least one row. Got none"),
        ("a,b\n1,2\n3\n", "must have 2 cells. Got 1 on line 3"),
        ("a,a\n1,2\n", "columns of t.csv must have a name each. Got 'a'"),
        (",a\nx,1\nx,2\n", "rows of t.csv must have a name each. Got 'x'"),
        ("a,b\n1,2\n3,oops\n", "Got 'oops' on line 3, column 'b'"),
        ("a,b\n1,NA\n", "Got 'NA' on line 2, column 'b'"),
        ("a,b\n1,inf\n", "Got 'inf' on line 2"),
        ("a,b\n1,nan\n", "Got 'nan' on line 2"),
    ],
)
def test_tables_that_are_refused(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(PriorGraphError, match=message):
        read_matrix(path, ",")


@pytest.mark.parametrize(
    ("names", "message"), [(["a"], "also has 'b'"), (["a", "b", "B"], "lacks 'B' .differs only in case")]
)
def test_names_that_do_not_fit(tmp_path, names, message):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(PriorGraphError, match=rf"t\.csv must name the same.*{message}"):
        read_matrix(path, ",").take(names, "t.csv")
