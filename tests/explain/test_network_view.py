"""The HTML page is checked as a file, and in a browser where one is installed."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pyg_kpnn import PriorGraph, PriorGraphError

pytest.importorskip("plotly")

from plotly.offline import get_plotlyjs

from pyg_kpnn.explain import network_view
from pyg_kpnn.explain.network_view import write_network_html

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
HOSTILE = [
    "<script>window.broken=1</script>",
    "A&B",
    "\"double\" 'single'",
    "<b>bold</b>",
    "μ-Opioid ± α",
    "already &lt;escaped&gt; &amp;",
    "<a href='https://example.org'>x</a>",
    "$x$ %{y}",
    "</script><img src=x>",
]


def ring(names: list[str]) -> pd.DataFrame:
    """Each name to the next, weights 0.1, 0.2, …"""
    count = len(names)
    return pd.DataFrame(
        {
            "source": names,
            "target": names[1:] + names[:1],
            "weight": [0.1 * (i + 1) for i in range(count)],
            "sign": [(1, -1, 0)[i % 3] for i in range(count)],
        }
    )


class Page(HTMLParser):
    """Cells of the table, texts in the drawing, and everything that names another file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.texts: list[str] = []
        self.elsewhere: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag == "td":
            self.cells.append("")
        if tag == "text":
            self.texts.append("")
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith(("data:", "#")):
                self.elsewhere.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "td" in self.open[-1:]:
            self.cells[-1] += data
        elif "text" in self.open and "script" not in self.open:
            self.texts[-1] += data


def figure(path: Path) -> dict[str, Any]:
    """What the page hands to plotly: traces and layout."""
    text = path.read_text(encoding="utf-8")
    start = text.index("Plotly.newPlot(") + len("Plotly.newPlot(")
    rest = text[start:].lstrip()
    decoder = json.JSONDecoder()
    out: list[Any] = []
    while len(out) < 3:
        value, end = decoder.raw_decode(rest)
        out.append(value)
        rest = rest[end:].lstrip(" ,\n")
    return {"traces": out[1], "layout": out[2]}


def edge_traces(path: Path) -> list[dict[str, Any]]:
    """Strongest first."""
    return [trace for trace in figure(path)["traces"] if trace["mode"] == "lines+markers"][::-1]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return write_network_html(ring(["a", "b", "c", "d"]), tmp_path / "net.html")


def test_hover_width_colour_and_end_of_each_edge(page: Path) -> None:
    traces = edge_traces(page)
    assert [trace["hovertext"] for trace in traces] == [
        "d → a<br>weight 0.4<br>activation",
        "c → d<br>weight 0.3<br>sign unknown",
        "b → c<br>weight 0.2<br>inhibition",
        "a → b<br>weight 0.1<br>activation",
    ]
    widths = [trace["line"]["width"] - 0.5 for trace in traces]
    assert [width / widths[0] for width in widths] == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert [trace["line"]["color"] for trace in traces] == ["#0072B2", "#7A7A7A", "#D55E00", "#0072B2"]
    symbols = [trace["marker"]["symbol"] for trace in traces]
    assert symbols == ["arrow-wide", "arrow-wide", "line-ew", "arrow-wide"]
    assert {trace["type"] for trace in traces} == {"scatter"}  # drawn as SVG, so that names are text


def test_an_edge_runs_from_its_source_to_its_target(page: Path) -> None:
    at = {box["text"]: (box["x"], box["y"]) for box in figure(page)["layout"]["annotations"]}
    for trace in edge_traces(page):
        names = re.match(r"(\w) → (\w)", trace["hovertext"]).groups()  # type: ignore[union-attr]
        for end, name in zip((0, -1), names, strict=True):
            away = {
                other: (trace["x"][end] - x) ** 2 + (trace["y"][end] - y) ** 2 for other, (x, y) in at.items()
            }
            assert min(away, key=lambda other: away[other]) == name
        assert not any(trace["marker"]["size"][:-1])
        assert trace["marker"]["size"][-1] > 0


def test_a_node_lists_its_strongest_edges(tmp_path: Path) -> None:
    hub = pd.DataFrame({"source": "hub", "target": [f"t{i}" for i in range(11)], "weight": range(1, 12)})
    boxes = figure(write_network_html(hub, tmp_path / "a.html"))["layout"]["annotations"]
    hover = {box["text"]: box["hovertext"].split("<br>") for box in boxes}
    assert hover["hub"] == ["<b>hub</b>", *(f"→ t{i} {i + 1}" for i in range(10, 2, -1)), "and 3 more"]
    assert hover["t4"] == ["<b>t4</b>", "← hub 5"]


def test_legend_has_one_entry_for_each_sign_that_is_there(page: Path, tmp_path: Path) -> None:
    def entries(path: Path) -> list[str]:
        return [trace["name"] for trace in figure(path)["traces"] if trace.get("showlegend", True)]

    assert entries(page) == ["activation", "inhibition", "sign unknown"]
    plain = write_network_html(PriorGraph.from_edges([("a", "b")], sign=[-1]), tmp_path / "b.html")
    assert entries(plain) == ["inhibition"]


def test_table_holds_every_edge_as_text(tmp_path: Path) -> None:
    frame = ring(HOSTILE)
    text = write_network_html(frame, tmp_path / "a.html").read_text(encoding="utf-8")
    words = {1: "activation", -1: "inhibition", 0: "sign unknown"}
    expected = [
        cell
        for row in frame.iloc[::-1].itertuples()
        for cell in (row.source, row.target, f"{row.weight:.4g}", words[row.sign])
    ]
    assert Page(text[text.index("<table>") :]).cells == expected


def test_names_are_escaped_wherever_they_stand(tmp_path: Path) -> None:
    path = write_network_html(ring(HOSTILE), tmp_path / "a.html", title="<i>T</i> & co")
    text = path.read_text(encoding="utf-8").replace(get_plotlyjs(), "")
    for hostile in ("<script>window.broken", "<b>bold", "<a href", "<img", "<i>T"):
        assert hostile not in text
    assert "<title>&lt;i&gt;T&lt;/i&gt; &amp; co</title>" in text
    drawn = figure(path)
    assert drawn["layout"]["title"]["text"] == "&lt;i&gt;T&lt;/i&gt; &amp; co"
    tags = [box["hovertext"] for box in drawn["layout"]["annotations"]]
    tags += [trace["hovertext"] for trace in edge_traces(path)]
    assert {tag for hover in tags for tag in re.findall(r"<[^>]*>", hover)} == {"<b>", "</b>", "<br>"}
    # plotly reads entities back once: what is left is the name
    assert {
        html.unescape(hover[3 : hover.index("</b>")]) for hover in tags if hover.startswith("<b>")
    } == set(HOSTILE)


def test_everything_is_in_the_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text) > 1_000_000  # plotly.js itself
    assert Page(text).elsewhere == []
    assert "Share chart" not in json.dumps(figure(page))
    assert not re.search(r"<script[^>]* src=|<link[^>]*stylesheet", text)


def test_only_the_strongest_are_written(tmp_path: Path) -> None:
    frame = ring([f"n{i}" for i in range(7)])
    path = write_network_html(frame, tmp_path / "a.html", top_k=2)
    assert [trace["hovertext"][:7] for trace in edge_traces(path)] == ["n6 → n0", "n5 → n6"]
    assert {box["text"] for box in figure(path)["layout"]["annotations"]} == {"n0", "n5", "n6"}
    many = pd.DataFrame({"source": "s", "target": [f"t{i}" for i in range(201)], "weight": 1.0})
    assert len(edge_traces(write_network_html(many, tmp_path / "b.html"))) == 200


def test_signs_come_from_the_graph_and_loops_are_drawn(tmp_path: Path) -> None:
    graph = PriorGraph.from_edges([("a", "b")], sign=[-1])
    frame = pd.DataFrame({"source": ["a", "b"], "target": ["b", "b"], "weight": [0.5, 0.25]})
    first, loop = edge_traces(write_network_html(frame, tmp_path / "a.html", graph=graph))
    assert first["hovertext"].endswith("inhibition")
    assert loop["hovertext"] == "b → b<br>weight 0.25<br>sign unknown"
    assert max(loop["y"]) - min(loop["y"]) > 10


def test_the_same_edges_give_the_same_file(page: Path, tmp_path: Path) -> None:
    again = write_network_html(ring(["a", "b", "c", "d"]).iloc[::-1], str(tmp_path / "again.html"))
    assert again == tmp_path / "again.html"
    assert again.read_bytes() == page.read_bytes()


def test_a_failed_write_leaves_the_old_file_alone(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = page.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(network_view.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_network_html(ring(["x", "y"]), page)
    assert page.read_bytes() == before
    assert [path.name for path in page.parent.iterdir()] == [page.name]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (ring(["a", "b"]).drop(columns="weight"), {}, "one column 'weight'"),
        (ring(["a", "b"]).iloc[:0], {}, "an edge or a node to draw. Got none"),
        ([("a", "b")], {}, "Got list"),
        (ring(["a", "b"]), {"title": 3}, "'title' must be text. Got 3"),
        (ring(["a", "b"]), {"top_k": 0}, "top_k must be a positive integer"),
        (ring(["a", "b"]), {"around": "z"}, "'around' must name nodes of the picture. Got 'z'"),
        (pd.concat([ring(["a", "b"])] * 2), {}, "one row. Got 2 for a -> b"),
    ],
)
def test_bad_input_is_refused_and_nothing_written(
    data: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PriorGraphError, match=message):
        write_network_html(data, tmp_path / "a.html", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_path_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(PriorGraphError, match=r"'path' must be a path. Got 3"):
        write_network_html(ring(["a", "b"]), 3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        write_network_html(ring(["a", "b"]), tmp_path / "no folder" / "a.html")


def test_missing_plotly_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(ImportError, match=r'pip install "pyg_kpnn\[plot\]"'):
        write_network_html(ring(["a", "b"]), tmp_path / "a.html")


# --- in a browser --------------------------------------------------------------------------------


def opened(path: Path, profile: Path) -> tuple[str, list[str]]:
    """The page as a browser has built it, and the addresses the page, not the browser itself, asked for."""
    log = profile / "net.json"
    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        f"--user-data-dir={profile}",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--log-net-log={log}", "--virtual-time-budget=5000",
        "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)  # type: ignore[arg-type]
    if not done.stdout or not log.is_file():
        pytest.skip(f"{BROWSER} does not start here: {done.stderr[-300:].decode(errors='replace')}")
    events = json.loads(log.read_text(encoding="utf-8"))["events"]
    found = [event["params"] for event in events if "url" in event.get("params", {})]
    asked = {entry["url"] for entry in found if entry.get("initiator", "not an origin") != "not an origin"}
    return done.stdout.decode("utf-8"), sorted(asked)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")
def test_a_browser_shows_names_and_weights_and_asks_for_nothing(tmp_path: Path) -> None:
    path = write_network_html(ring(HOSTILE), tmp_path / "a.html")
    text, asked = opened(path, tmp_path / "first")
    assert asked == []
    seen = Page(re.sub(r"<script\b.*?</script>", "", text, flags=re.DOTALL))
    # long names are shortened in the drawing and whole in the table
    short = {name if len(name) <= 32 else f"{name[:16]}…{name[-15:]}" for name in HOSTILE}
    assert short <= {written.replace("\xa0", " ") for written in seen.texts}
    assert {"activation", "inhibition", "sign unknown"} <= set(seen.texts)
    assert set(HOSTILE) | {f"{0.1 * i:.4g}" for i in range(1, 10)} <= set(seen.cells)
    assert seen.elsewhere == []
    assert text.count("js-line") >= len(HOSTILE)
    assert "window.broken=1</script>" not in text


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")
def test_a_request_of_a_page_would_be_seen(tmp_path: Path) -> None:
    """The test above can fail: here are two requests."""
    path = tmp_path / "a.html"
    path.write_text('<img src="http://a.invalid/x.png"><script>fetch("https://b.invalid/y")</script>')
    assert opened(path, tmp_path / "profile")[1] == ["http://a.invalid/x.png", "https://b.invalid/y"]
