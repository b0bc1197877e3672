"""read_graphml, read_gml and read_cytoscape_json: what they read, and files of strangers."""

from __future__ import annotations

import gzip
import json
from xml.etree import ElementTree

import networkx as nx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, read_cytoscape_json, read_gml, read_graphml

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n'
KEYS = """<key id="d0" for="node" attr.name="symbol" attr.type="string"/>
<key id="d1" for="edge" attr.name="mor" attr.type="int"/>
<key id="d2" for="edge" attr.name="score" attr.type="double"><default>0.5</default></key>
"""
BODY = """<graph edgedefault="directed">
<node id="n0"><data key="d0">heat shock</data></node>
<node id="n1"><data key="d0">HSF1</data></node>
<node id="n2"><data key="d0">[1, 2]</data></node>
<edge source="n0" target="n1"><data key="d1">-1</data><data key="d2">0.1</data></edge>
<edge source="n1" target="n1"/>
</graph></graphml>
"""
XML = HEAD + KEYS + BODY
GML = """graph [ directed 1
node [ id 0 label "b" kind "x y" ]
node [ id 1 label "a" kind "z" ]
node [ id 2 label "c" kind "q" ]
edge [ source 0 target 1 mor -1 w 0.25 ]
edge [ source 1 target 1 mor 1 w 2 ]
]
"""
CYJS = {
    "data": {"name": "net"},
    "elements": {
        "nodes": [
            {"data": {"id": "1", "name": "a"}},
            {"data": {"id": "2", "name": "b"}},
            {"data": {"id": 3, "name": "z"}},
        ],
        "edges": [{"data": {"id": "9", "source": "1", "target": "2", "mor": "-", "w": 0.1}}],
    },
}


@pytest.fixture
def write(tmp_path):
    def _write(text, name):
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return tmp_path / name

    return _write


@pytest.mark.parametrize("name", ["net.graphml", "net.graphml.gz", "net.xml"])
def test_graphml(write, name):
    graph, report = read_graphml(write(XML, name), sign="mor", weight="score", return_report=True)
    assert graph == PriorGraph.from_edges(
        [("n0", "n1"), ("n1", "n1")], sign=[-1, 0], weight=[0.1, 0.5], nodes=["n2"]
    )
    assert (report.rows_read, report.isolated, report.self_loops) == (2, ("n2",), ("n1",))
    assert "node attributes that were not read: 'symbol'" in report.quirks
    assert "node attributes that hold lists written as text: 'symbol'" in report.quirks
    named = read_graphml(write(XML, name), name="symbol")
    assert named.edges == (("HSF1", "HSF1"), ("heat shock", "HSF1"))
    assert read_graphml(write(XML, name), drop_self_loops=True, return_report=True)[1].dropped[0].lines == (
        11,
    )


def test_graphml_lines_of_parallel_edges(write):
    twice = XML.replace("</graph>", '<edge source="n0" target="n1"><data key="d1">1</data></edge></graph>')
    path = write(twice, "net.graphml")
    with pytest.raises(PriorGraphError, match=r"line 12 of net.graphml .n0 -> n1. repeats line 10"):
        read_graphml(path)
    with pytest.raises(PriorGraphError, match=r"\+ and - for 1 edge"):
        read_graphml(path, sign="mor", on_duplicate="first")
    graph, report = read_graphml(
        path, sign="mor", on_duplicate="first", on_conflict="unknown", return_report=True
    )
    assert graph.num_edges == 2
    assert report.dropped[0].lines == (12,)
    assert report.duplicates_conflicting[0][:4] == ("n0", "n1", (10, 12), (-1, 1))


def test_graphml_undirected(write):
    path = write(XML.replace('edgedefault="directed"', 'edgedefault="undirected"'), "net.graphml")
    with pytest.raises(PriorGraphError, match="undirected='both'"):
        read_graphml(path)
    graph, report = read_graphml(path, undirected="both", return_report=True)
    assert graph.edges == (("n0", "n1"), ("n1", "n0"), ("n1", "n1"))
    assert report.rows_read == 3


@pytest.mark.parametrize(
    ("text", "how", "words"),
    [
        (
            XML.replace("<graphml", '<!DOCTYPE g [<!ENTITY a "aaaa">]>\n<graphml'),
            {},
            "without a DOCTYPE and entities",
        ),
        (
            XML.replace("<graphml", '<!DOCTYPE g SYSTEM "file:///etc/passwd">\n<graphml'),
            {},
            "without a DOCTYPE",
        ),
        (XML[:-12], {}, "must be well-formed XML. Got a fault in line"),
        ("", {}, "must be well-formed XML"),
        ("graph [ ]", {}, "must be well-formed XML"),
        (XML.replace("UTF-8", "utf-99"), {}, "must be well-formed XML"),
        ("<html/>", {}, "net.graphml must be a GraphML file"),
        (
            HEAD + KEYS + BODY.replace("</graphml>", '<graph edgedefault="directed"/></graphml>'),
            {},
            "must hold one graph. Got 2",
        ),
        (XML.replace('target="n1"/>', 'target="n9"/>'), {}, "must be a node of net.graphml. Got 'n9'"),
        (
            XML.replace('<node id="n2">', "<node>"),
            {},
            "Every node of net.graphml must have its id. Got none on line 9",
        ),
        (XML.replace(' target="n1"/>', "/>"), {}, "Every edge of net.graphml must have its target"),
        (XML.replace('id="n2"', 'id="n0"'), {}, "stand there once. Got 'n0' on lines 7 and 9"),
        (
            XML.replace("HSF1", "heat shock"),
            {"name": "symbol"},
            "a name of its own. Got 'heat shock' for the nodes 'n0' and 'n1'",
        ),
        (XML.replace('"directed"', '"Directed"'), {}, "'directed' or 'undirected'. Got 'Directed' on line 6"),
        (XML.replace(' edgedefault="directed"', ""), {}, "Got None on line 6 of net.graphml"),
        (XML, {"name": "sybmol"}, "must have the name attribute 'sybmol'. Got none at 'n0'.*'symbol'"),
        (XML, {"sign": "sign"}, "must have the sign attribute 'sign'"),
        (XML, {"side": "symbol"}, "must be 'source' or 'target'. Got 'heat shock' at 'n0'"),
        (XML, {"width": "symbol"}, "must be an int of at least 1. Got 'heat shock'"),
        (XML, {"name": 3}, "'name' must be None or the name of an attribute. Got 3"),
        (XML, {"max_bytes": 50}, "at most 50 bytes"),
        (XML.replace("-1<", "x<"), {}, "must be a GraphML file"),
        (HEAD + "<a>" * 200 + "</a>" * 200 + "</graphml>", {}, "nested at most 100 deep"),
        (
            XML.replace("<edge ", '<edge id="1" ').replace(
                '<edge id="1" source="n1" target="n1"', '<edge id="1" source="n0" target="n1"'
            ),
            {},
            "edges share an id",
        ),
        (
            XML.replace(
                '<node id="n2">', '<node id="n2"><graph edgedefault="directed"><node id="n3"/></graph>'
            ),
            {},
            "nodes are in a nested graph",
        ),
    ],
)
def test_graphml_faults(write, text, how, words):
    with pytest.raises(PriorGraphError, match=words):
        read_graphml(write(text, "net.graphml"), **how)


@pytest.mark.parametrize(("deep", "refused"), [(97, False), (98, True)])
def test_graphml_is_read_to_a_depth_of_a_hundred(write, deep, refused):
    # below <graphml>, <graph> and <node>
    text = XML.replace('<node id="n2">', '<node id="n2">' + "<a>" * deep + "</a>" * deep)
    path = write(text, "net.graphml")
    if refused:
        with pytest.raises(PriorGraphError, match=r"nested at most 100 deep\. Got more on line"):
            read_graphml(path)
    else:
        assert read_graphml(path) == read_graphml(write(XML, "plain.graphml"))


def test_graphml_that_would_grow_is_refused_at_once(write):
    laughs = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12))
    text = XML.replace("<graphml", f'<!DOCTYPE g [<!ENTITY a0 "ha">{laughs}]>\n<graphml').replace(
        "HSF1", "&a11;"
    )
    with pytest.raises(PriorGraphError, match="without a DOCTYPE"):
        read_graphml(write(text, "net.graphml"))
    bomb = write(HEAD + " " * 3_000_000, "net.graphml.gz")
    with pytest.raises(PriorGraphError, match="at most 100,000 bytes"):
        read_graphml(bomb, max_bytes=100_000)
    bomb.write_bytes(bomb.read_bytes()[:-9])
    with pytest.raises(PriorGraphError, match="whole gzip file"):
        read_graphml(bomb)


def test_gml(write):
    path = write(GML, "net.gml")
    graph = read_gml(path, sign="mor", weight="w")
    assert graph == PriorGraph.from_edges(
        [("b", "a"), ("a", "a")], sign=[-1, 1], weight=[0.25, 2], nodes=["c"]
    )
    assert read_gml(path, name="kind").nodes == ("q", "x y", "z")
    assert read_gml(path, name=None).nodes == ("0", "1", "2")
    assert read_gml(write(GML, "net.gml.gz"), return_report=True)[1].rows_read == 2


@pytest.mark.parametrize(
    ("text", "how", "words"),
    [
        ("", {}, "net.gml must be a GML file"),
        (GML[:40], {}, "must be a GML file"),
        ("graph [ " + "a [ " * 5_000, {}, "must be a GML file"),
        (b"graph [ \xff ]", {}, "must be a GML file"),
        (GML.replace("id 2", "id 1"), {}, "must be a GML file"),
        (GML.replace("target 1 mor 1", "target 7 mor 1"), {}, "must be a GML file"),
        (GML.replace("directed 1", ""), {}, "undirected='both'"),
        (GML.replace('label "c"', 'label "b"'), {}, "a name of its own. Got 'b' for the nodes 0 and 2"),
        (GML.replace('label "c"', ""), {}, "must have the name attribute 'label'. Got none at 2"),
        (GML, {"max_bytes": 10}, "at most 10 bytes"),
        (GML, {"weight": "mor2"}, "must have the weight attribute 'mor2'"),
    ],
)
def test_gml_faults(write, text, how, words):
    with pytest.raises(PriorGraphError, match=words):
        read_gml(write(text, "net.gml"), **how)


def test_cytoscape_json_in_its_shapes(write):
    due = PriorGraph.from_edges([("a", "b")], sign=[-1], weight=[0.1], nodes=["z"])
    elements = CYJS["elements"]
    for payload in (
        CYJS,
        elements,
        [*elements["edges"], *elements["nodes"]],
        {"elements": elements["nodes"] + elements["edges"]},
    ):
        path = write(json.dumps(payload), "net.cyjs")
        assert read_cytoscape_json(path, sign="mor", weight="w") == due
    assert read_cytoscape_json(path, name=None).nodes == ("1", "2", "3")


def changed(change):
    payload = json.loads(json.dumps(CYJS))
    change(payload["elements"])
    return json.dumps(payload)


@pytest.mark.parametrize(
    ("text", "how", "words"),
    [
        ("", {}, "net.json must be JSON"),
        ("[" * 100_000, {}, "must be JSON"),
        (b"\xff", {}, "must be JSON"),
        ("9" * 5_000, {}, "must be JSON"),
        ('{"a": NaN}', {}, "NaN is no JSON number"),
        ('{"elements": [], "elements": []}', {}, "a key twice"),
        ("{}", {}, "must hold Cytoscape elements"),
        ("3", {}, "must hold Cytoscape elements"),
        ('{"nodes": [], "edges": []}', {}, "at least one edge"),
        (changed(lambda e: e["nodes"].append(5)), {}, "an object with 'data'. Got 5 at node 4"),
        (changed(lambda e: e["nodes"].append({"data": {}})), {}, "must be text. Got None at node 4"),
        (changed(lambda e: e["nodes"].append(e["nodes"][0])), {}, "an id of its own. Got '1' twice"),
        (changed(lambda e: e["edges"][0]["data"].update(target="7")), {}, "Got '7' at edge 1"),
        (
            changed(lambda e: e["edges"][0]["data"].update(target=[1])),
            {},
            r"must be text. Got \[1\] at edge 1",
        ),
        (changed(lambda e: e["nodes"][1]["data"].update(name="a")), {}, "a name of its own. Got 'a'"),
        (changed(lambda e: e["nodes"][1]["data"].pop("name")), {}, "must have the name attribute 'name'"),
        (
            changed(lambda e: e["edges"].append(e["edges"][0])),
            {},
            r"edge 2 of net.json .a -> b. repeats edge 1",
        ),
        (json.dumps(CYJS), {"weight": "mor"}, r"Got '-' at edge 1 of net.json .a -> b."),
    ],
)
def test_cytoscape_json_faults(write, text, how, words):
    with pytest.raises(PriorGraphError, match=words):
        read_cytoscape_json(write(text, "net.json"), **how)


def test_sides_and_widths(write):
    nodes = [
        {"data": {"id": "1", "name": "a", "side": "source", "w": 2}},
        {"data": {"id": "2", "name": "a", "side": "target", "w": 2}},
    ]
    edges = [{"data": {"source": "1", "target": "2"}}]
    path = write(json.dumps([*nodes, *edges]), "net.json")
    assert read_cytoscape_json(path, side="side", width="w") == PriorGraph.bipartite(
        [("a", "a")], widths={"a": 2}
    )
    for node in nodes:
        node["data"]["w"] = 1000
    path = write(json.dumps([*nodes, *edges]), "net.json")
    assert read_cytoscape_json(path, side="side", width="w").widths == {"a": 1000}
    nodes[0]["data"]["w"] = 2
    edges[0]["data"].update(source="2", target="1")
    with pytest.raises(PriorGraphError, match=r"Got a \(target\) -> a \(source\) at edge 1 of net.json"):
        read_cytoscape_json(write(json.dumps([*nodes, *edges]), "net.json"), side="side")
    nodes[1]["data"]["w"] = 3
    edges[0]["data"].update(source="1", target="2")
    with pytest.raises(PriorGraphError, match="Got 2 and 3 for 'a'"):
        read_cytoscape_json(write(json.dumps([*nodes, *edges]), "net.json"), side="side", width="w")


@pytest.mark.parametrize("read", [read_graphml, read_gml, read_cytoscape_json])
def test_no_file_and_bad_flags(tmp_path, read):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")
    path = tmp_path / "net"
    path.write_text({read_graphml: XML, read_gml: GML, read_cytoscape_json: json.dumps(CYJS)}[read])
    for option in ("return_report", "drop_self_loops"):
        with pytest.raises(PriorGraphError, match=f"'{option}' must be True or False"):
            read(path, **{option: "no"})
    with pytest.raises(PriorGraphError, match="'max_bytes' must be"):
        read(path, max_bytes=0)


PIECES = [
    b"<",
    b">",
    b"/",
    b'"',
    b"&",
    b"&amp;",
    b"n0",
    b"n1",
    b"\0",
    b"\xff",
    b"<edge",
    b"<node",
    b"</graph>",
    b"[",
    b"]",
]


@st.composite
def damaged(draw, valid):
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 12))] = draw(st.sampled_from(PIECES))
    return bytes(data)


def test_any_bytes_give_a_right_graph_or_the_one_error_graphml(tmp_path):
    path = tmp_path / "net.graphml"

    @settings(max_examples=150, deadline=None)
    @given(st.one_of(st.binary(max_size=60), damaged(XML.encode())))
    @example(XML.encode())
    def check(data):
        path.write_bytes(data)
        try:
            graph = read_graphml(path, on_duplicate="first", undirected="both")
        except PriorGraphError:
            return
        tree = ElementTree.fromstring(data)  # elements by hand, without networkx
        edges = {(e.get("source"), e.get("target")) for e in tree.iter() if e.tag.endswith("edge")}
        if "undirected" in tree.find("{*}graph").get("edgedefault", "undirected"):
            edges |= {pair[::-1] for pair in edges}
        assert set(graph.edges) == edges
        assert set(graph.nodes) == {e.get("id") for e in tree.iter() if e.tag.endswith("node")}

    check()


@pytest.mark.parametrize(
    ("read", "valid"),
    [(read_gml, GML.encode()), (read_cytoscape_json, json.dumps(CYJS).encode())],
    ids=["gml", "json"],
)
def test_any_bytes_give_a_graph_or_the_one_error(tmp_path, read, valid):
    path = tmp_path / "net"

    @settings(max_examples=150, deadline=None)
    @given(st.one_of(st.binary(max_size=60), damaged(valid)))
    @example(valid)
    def check(data):
        path.write_bytes(data)
        try:
            graph = read(path)
        except PriorGraphError:
            return
        if read is read_gml:
            theirs = nx.parse_gml(data.decode("utf-8-sig"))
            assert {(str(a), str(b)) for a, b in theirs.edges} == set(graph.edges)
        assert graph.num_edges >= 1

    check()
