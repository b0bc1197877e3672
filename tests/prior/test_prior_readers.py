"""read_edgelist on small files with one quirk each."""

from __future__ import annotations

import gzip

import pytest

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior import PriorGraph, read_edgelist


@pytest.fixture
def write(tmp_path):
    def _write(text, name="net.csv", encoding="utf-8"):
        path = tmp_path / name
        data = text if isinstance(text, bytes) else text.encode(encoding)
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return _write


@pytest.mark.parametrize(
    ("name", "sep", "more"),
    [
        ("n.csv", ",", {}),
        ("n.tsv", "\t", {}),
        ("n.txt", "\t", {}),
        ("n.CSV", ",", {}),
        ("n.csv.gz", ",", {}),
        ("my.net.tsv.gz", "\t", {}),
        ("n.dat", ";", {"sep": ";"}),
        ("n.csv", "|", {"sep": "|"}),
    ],
)
def test_separators_and_gzip(write, name, sep, more):
    text = "source,target,sign\nb,c,+\na,c,-\n".replace(",", sep)
    graph = read_edgelist(write(text, name), sign="sign", **more)
    assert graph.edges == (("a", "c"), ("b", "c"))
    assert graph.sign.tolist() == [-1, 1]
    assert read_edgelist(str(write(text, name)), **more).sign is None


def test_gene_names_stay_themselves(write):
    names = ["NA", "NAN", "nan", "null", "None", "007", "MARCH1", "1e5", "1.0", "True", "inf", "N/A", "#1"]
    text = "source,target\n" + "".join(f"{name},x\n" for name in names)
    assert set(read_edgelist(write(text)).input_nodes) == set(names)


def test_bom_blanks_crlf_blank_lines_and_quotes(write):
    text = '\ufeff source ,\ttarget\r\n\r\n a , b\u00a0\r\n   \r\n"x, y","say ""hi"""\r\n\r\n'
    for encoding in ("utf-8-sig", "utf-8"):
        graph = read_edgelist(write(text), encoding=encoding)
        assert graph.edges == (("a", "b"), ("x, y", 'say "hi"'))
    assert read_edgelist(write("source,target\ra,b\r")).edges == (("a", "b"),)
    assert read_edgelist(write("source,target\na,b")).edges == (("a", "b"),)


def test_inner_blanks_and_single_quotes_stay(write):
    assert read_edgelist(write("source\ttarget\n5'-x y\tb c\n", "n.tsv")).nodes == ("5'-x y", "b c")


def test_without_header(write):
    path = write("a\tb\t-\nb\tc\t+\n", "n.tsv")
    graph = read_edgelist(path, header=False, sign=2)
    assert graph.edges == (("a", "b"), ("b", "c"))
    assert graph.sign.tolist() == [-1, 1]
    assert read_edgelist(path, header=False, source=1, target=0).edges == (("b", "a"), ("c", "b"))
    assert read_edgelist(write("\ufeffa,b\n"), header=False).nodes == ("a", "b")
    with pytest.raises(PriorGraphError, match=r"'sign'.*3 columns and no header.*by position"):
        read_edgelist(path, header=False, sign="sign")
    with pytest.raises(PriorGraphError, match="one sign column 3"):
        read_edgelist(path, header=False, sign=3)


def test_columns_by_name_or_position(write):
    path = write("tf,score,gene,score\nb,2,c,1\na,0.5,c,1\n")
    graph = read_edgelist(path, source="tf", target="gene", weight=1)
    assert graph.weight.tolist() == [0.5, 2.0]
    with pytest.raises(PriorGraphError, match=r"one source column 'source'.*'tf', 'score', 'gene', 'score'"):
        read_edgelist(path)
    with pytest.raises(PriorGraphError, match=r"stands there 2 times"):
        read_edgelist(path, source="tf", target="gene", weight="score")
    with pytest.raises(PriorGraphError, match="pass sep="):
        read_edgelist(write("source\ttarget\na\tb\n"))


def test_options_reach_the_graph(write):
    path = write("source,target,w,s\na,b,1,+\na,b,3,-\nb,c,2,?\n")
    graph = read_edgelist(
        path,
        weight="w",
        sign="s",
        nodes=["z"],
        widths={"b": 2},
        on_duplicate="max",
        on_conflict="unknown",
        sign_map={"+": 1, "-": -1, "?": -1},
    )
    expected = PriorGraph.from_edges(
        [("a", "b"), ("b", "c")], weight=[3, 2], sign=[0, -1], nodes=["z"], widths={"b": 2}
    )
    assert graph == expected


def test_comments(write):
    text = '# made by hand\n# "unbalanced\nsource,target\n#a,b\nc,d\n,e\n'
    with pytest.raises(PriorGraphError, match=r"line 6 of net\.csv"):
        read_edgelist(write(text), comment="#")
    assert read_edgelist(write(text.replace(",e\n", "")), comment="#").edges == (("c", "d"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("source,target\na,b\n\n ,c\nd,\n", r"name its source.*1 row.*line 4 of net.csv"),
        ('source,target\n"a\nb",c\nd,\n', r"name its target.*line 4 of net.csv"),
        ("source,target\na,b\nc\nd,e,f\n", r"2 cells.*1 on line 3, 3 on line 4"),
        ("source,target\na,b\na,b\n", r"line 3 of net.csv \(a -> b\) repeats line 2"),
        ("source,target\n", "at least one edge"),
        ("", "Got nothing in net.csv"),
        ("\n\n", "Got nothing in net.csv"),
        ('source,target\na,"b\nc,d\n', "well-formed.*line 2"),
    ],
)
def test_faults_come_with_line_numbers(write, text, words):
    with pytest.raises(PriorGraphError, match=words):
        read_edgelist(write(text))


def test_bad_signs_and_weights_come_with_line_and_edge(write):
    path = write("source,target,s,w\na,b,+,1\nb,c,maybe,x\nc,d,,\n")
    with pytest.raises(PriorGraphError, match=r"'maybe' at line 3 of net.csv \(b -> c\)"):
        read_edgelist(path, sign="s")
    with pytest.raises(PriorGraphError, match=r"'x' at line 3 of net.csv \(b -> c\), '' at line 4"):
        read_edgelist(path, weight="w")


def test_files_that_are_no_text(write, tmp_path):
    with pytest.raises(FileNotFoundError):
        read_edgelist(tmp_path / "none.csv")
    with pytest.raises(PriorGraphError, match=r"must be text in utf-8-sig.*Pass encoding="):
        read_edgelist(write("source,target\né,b\n", encoding="latin-1"))
    assert read_edgelist(write("source,target\né,b\n", encoding="latin-1"), encoding="latin-1").nodes == (
        "b",
        "é",
    )
    with pytest.raises(PriorGraphError, match="known text encoding"):
        read_edgelist(write("source,target\na,b\n"), encoding="utf-99")
    path = write("source,target\na,b\n")
    with pytest.raises(PriorGraphError, match="gzip"):
        read_edgelist(path.rename(tmp_path / "x.csv.gz"))
    whole = write("source,target\na,b\n", "y.csv.gz").read_bytes()
    (tmp_path / "y.csv.gz").write_bytes(whole[:-9])
    with pytest.raises(PriorGraphError, match="gzip"):
        read_edgelist(tmp_path / "y.csv.gz")


@pytest.mark.parametrize("sep", ["", ",,", 5, "\n", '"'])
def test_bad_separators(write, sep):
    with pytest.raises(PriorGraphError, match="one character"):
        read_edgelist(write("source,target\na,b\n"), sep=sep)


def test_bad_comment(write):
    with pytest.raises(PriorGraphError, match="'comment' must be"):
        read_edgelist(write("source,target\na,b\n"), comment="")


def test_unknown_suffix(write):
    with pytest.raises(PriorGraphError, match=r"Got 'net\.dat'. Pass sep="):
        read_edgelist(write("source,target\na,b\n", "net.dat"))
    with pytest.raises(PriorGraphError, match="Pass sep="):
        read_edgelist(write("source,target\na,b\n", "net"))


def test_boolean_rules_are_no_edgelist(write):
    path = write("Gene\tRule\nA\tB and not (C or D)\nB\tA\n", "rules.txt")
    with pytest.raises(PriorGraphError, match=r"'Gene', 'Rule'.*Boolean rules"):
        read_edgelist(path)
    with pytest.raises(PriorGraphError, match=r"Boolean rule on line 2 of rules.txt"):
        read_edgelist(path, source="Gene", target="Rule")


def test_names_with_and_or_brackets_are_names(write):
    text = "source,target\nA,repair and recombination\nB,A or Q\nC,TNF (alpha)\n"
    assert read_edgelist(write(text)).output_nodes == ("A or Q", "TNF (alpha)", "repair and recombination")


@pytest.mark.parametrize(("names", "refused"), [(4, True), (5, False)])
def test_a_rule_among_names_counts_from_a_fifth_of_the_lines(write, names, refused):
    path = write("source,target\nA,not (B)\n" + "".join(f"B,t{i}\n" for i in range(names)))
    if refused:
        with pytest.raises(PriorGraphError, match=r"Boolean rule on line 2.*'not \(B\)'"):
            read_edgelist(path)
    else:
        assert read_edgelist(path).num_edges == 6
