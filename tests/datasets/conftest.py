"""A server on this machine, for the downloads of the datasets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest


class Reply(NamedTuple):
    """What the server answers: contents, the length it announces (None: none), a place to go on to."""

    body: bytes
    length: int | None = None
    location: str | None = None
    announce: bool = True


class Site:
    """Files at an address; keeps what was asked for."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.files: dict[str, Reply] = {}
        self.asked: list[str] = []

    def put(self, path: str, body: bytes, **more: object) -> str:
        self.files[path] = Reply(body, **more)
        return f"{self.address}{path}"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pages.asked.append(self.path)
            reply = pages.files.get(self.path)
            if reply is None:
                return self.send_error(404)
            if reply.location is not None:
                self.send_response(302)
                self.send_header("Location", reply.location)
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.send_response(200)
            if reply.announce:
                self.send_header("Content-Length", str(reply.length or len(reply.body)))
            self.end_headers()
            try:
                self.wfile.write(reply.body)
            except OSError:  # whoever asked has heard enough
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        pages = Site(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield pages
        finally:
            server.shutdown()
            thread.join()
