"""read_edgelist on files that anybody may have written: the right graph or a clear refusal, nothing between.

What a file holds is decided by a second parser, ``tests/fuzz/edgelists.py``, that shares nothing with ours.
``PYG_KPNN_SWEEP`` sets how many files the long sweep makes.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_kpnn import PriorGraph, PriorGraphError, read_edgelist

FUZZ = Path(__file__).parents[1] / "fuzz"
SWEEP = int(os.environ.get("PYG_KPNN_SWEEP", "1000000"))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fuzz_{name}", FUZZ / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


edgelists = load("edgelists")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("strangers")


@pytest.fixture
def write(tmp_path):
    def _write(text, name="net.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
        return path

    return _write


def sweep(seeds, folder, capsys):
    """Agree with the second parser on a file for every seed; how often each thing became of them."""
    became = Counter()
    begun = time.monotonic()
    for seed in seeds:
        try:
            became[edgelists.check(edgelists.make_case(seed), folder)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    total, took = became.total(), time.monotonic() - begun
    with capsys.disabled():
        print(
            f"\n{total:,} odd edgelist files, {became['edges']:,} read, {total / took:,.0f} a second", end=" "
        )
    return became


def test_odd_files_are_read_right_or_refused(folder, capsys):
    became = sweep(range(SWEEP // 100), folder, capsys)
    assert became["edges"] > became.total() / 10


@pytest.mark.slow
def test_very_many_odd_files_are_read_right_or_refused(folder, capsys):
    became = sweep(range(1_000_000, 1_000_000 + SWEEP), folder, capsys)
    if SWEEP >= 10_000:  # every way to refuse a file was met
        assert set(became) >= {"bytes", "nothing", "column", "ragged", "empty name", "twice", "both signs"}
        assert set(became) >= {"sign", "weight", "no edge", "NUL", "quote", "open quote", "rules"}


@pytest.mark.slow
def test_coverage_guided_fuzzing_finds_no_disagreement(tmp_path):
    pytest.importorskip("atheris", reason="atheris is not installed; tests/fuzz/fuzz_edgelists.py needs it")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    runs = min(SWEEP, 100_000)
    command = [sys.executable, str(FUZZ / "fuzz_edgelists.py"), f"-runs={runs}", "-seed=1"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4_000:]
    assert f"Done {runs} runs" in done.stderr


options = st.builds(
    lambda header, **rest: {**rest, "header": header, "sign": "sign" if header else 2},
    sep=st.sampled_from(",\t;| "),
    header=st.booleans(),
    comment=st.sampled_from([None, "#"]),
    encoding=st.sampled_from(edgelists.ENCODINGS),
    on_duplicate=st.sampled_from(["error", "first"]),
)
letters = st.sampled_from('ab,"\t\n\r ;#=\ufeff\0é\u2028\x85\U0001f9ec') | st.characters()


@settings(max_examples=150, deadline=None)
@given(text=st.text(letters, max_size=60), options=options)
def test_any_text_is_read_right_or_refused(folder, text, options):
    head = options["sep"].join(["source", "target", "sign"]) + "\n" if options["header"] else ""
    data = (head + text).encode(options["encoding"], "replace")
    edgelists.check(edgelists.Case(data, **options), folder)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=60), zipped=st.booleans(), options=options)
def test_any_bytes_are_read_right_or_refused(folder, data, zipped, options):
    edgelists.check(edgelists.Case(data, zipped, **options), folder)


# ---------------------------------------------------------------- one kind of fault each


def test_no_line_of_a_quoted_cell_is_a_comment(write):
    path = write('source,target\n#gone,x\n"a\n#b",c\n')
    assert read_edgelist(path, comment="#").edges == (("a\n#b", "c"),)


def test_a_byte_order_mark_before_a_comment_is_removed(write):
    path = write("\ufeff# made by hand\nsource,target\na,b\n")
    for encoding in ("utf-8", "utf-8-sig"):
        assert read_edgelist(path, comment="#", encoding=encoding).edges == (("a", "b"),)


def test_two_files_joined_are_told_by_the_inner_byte_order_mark(write):
    one = "\ufeffsource,target\na,b\n"
    with pytest.raises(PriorGraphError, match=r"byte order mark. Got one on line 3"):
        read_edgelist(write(one + one.replace("a,b", "c,d")))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_utf_16_taken_for_utf_8_is_told_by_its_nul_characters(write, encoding):
    path = write("source,target\na,b\n", encoding=encoding)
    with pytest.raises(PriorGraphError, match=r"NUL.*line 1.*UTF-16. Pass encoding="):
        read_edgelist(path)
    assert read_edgelist(path, encoding=encoding).edges == (("a", "b"),)


def test_a_nul_in_a_name_is_refused_with_its_line(write):
    with pytest.raises(PriorGraphError, match=r"NUL characters\. Got one on line 3"):
        read_edgelist(write("source,target\na,b\na\0,b\n"))


def test_a_line_in_another_encoding_is_refused(write):
    path = write("source,target\na,é\n".encode() + "c,é\n".encode("latin-1"))
    with pytest.raises(PriorGraphError, match=r"must be text in utf-8.*Pass encoding="):
        read_edgelist(path)


def test_line_ends_may_be_mixed(write):
    path = write("source,target\ra,b\nc,d\r\ne,f\r\r\n\ng,h")
    assert read_edgelist(path).edges == (("a", "b"), ("c", "d"), ("e", "f"), ("g", "h"))


@pytest.mark.parametrize("cell", ["1_000", "\u0663", "0x1", "1e999", "0,5"])
def test_weights_only_python_would_read_are_refused(write, cell):
    with pytest.raises(PriorGraphError, match=r"finite numbers. Got .* at line 2"):
        read_edgelist(write(f'source,target,w\na,b,"{cell}"\n'), weight="w")


@pytest.mark.parametrize("cell", ["0_1", "\u0661", "+1_"])
def test_signs_only_python_would_read_are_refused(write, cell):
    with pytest.raises(PriorGraphError, match=r"sign must be .* at line 2"):
        read_edgelist(write(f"source,target,s\na,b,{cell}\n"), sign="s")


@pytest.mark.parametrize("target", ["and", "or", "not", "()", "and (", ") or ("])
def test_a_cell_of_operators_alone_is_a_name(write, target):
    path = write(f"source,target\na,{target}\n")
    if "(" in target and target != "()":  # brackets beside an operator do read like a rule
        with pytest.raises(PriorGraphError, match="Boolean rule"):
            read_edgelist(path)
    else:
        assert read_edgelist(path).edges == (("a", target),)


def test_blanks_inside_a_cell_take_no_more_time_than_others(write):
    path = write("source,target\n" + f"a{' ' * 120_000}b,c{' ' * 120_000}d\n")
    begun = time.process_time()
    graph = read_edgelist(path)
    assert time.process_time() - begun < 2  # seconds; a backtracking pattern takes minutes
    assert list(map(len, graph.nodes)) == [120_002, 120_002]


def test_brackets_around_a_known_name_are_part_of_a_name(write):
    path = write("source,target\nTP53,(MYC)\nMYC,(TP53\n")
    assert read_edgelist(path).edges == (("MYC", "(TP53"), ("TP53", "(MYC)"))


@pytest.mark.parametrize("encoding", ["utf-99", "rot13", "hex", "a\0b", 7, ""])
def test_encodings_that_are_none_are_told(write, encoding):
    with pytest.raises(PriorGraphError, match="'encoding' must be a known text encoding"):
        read_edgelist(write("source,target\na,b\n"), encoding=encoding)


# ---------------------------------------------------------------- out and in again

utf_8 = letters.filter(lambda c: c != "\0" and not "\ud800" <= c <= "\udfff")
plain_names = st.text(utf_8, min_size=1, max_size=8).filter(
    lambda name: name.strip() == name and not name.startswith("\ufeff")
)


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(plain_names | st.sampled_from(edgelists.NAMES), min_size=2, max_size=6, unique=True),
    weight=st.floats(allow_nan=False, allow_infinity=False),
)
def test_names_survive_a_way_through_csv(folder, names, weight):
    names = [name for name in names if name.strip() == name]
    pairs = list(zip(names, names[1:] + names[:1], strict=True))
    if any(word in name for name in names for word in ("and", "or", "not")) or not pairs:
        return  # they may read like Boolean rules
    graph = PriorGraph.from_edges(pairs, weight=[weight] * len(pairs), sign=[-1] * len(pairs))
    path = folder / "out.csv"
    graph.to_edgelist().to_csv(path, index=False, quoting=csv.QUOTE_NONNUMERIC)
    weighted = None if graph.weight is None else "weight"
    assert read_edgelist(path, sign="sign", weight=weighted) == graph


def test_formulas_stay_what_they_are_in_and_out(tmp_path):
    """A prefix would make a spreadsheet safe, and the node another node: the graph has to come back."""
    names = ["=cmd|' /C calc'!A0", "@SUM(A1)", "+1-2", '=HYPERLINK("http://x","y")', "-2+3"]
    graph = PriorGraph.from_edges([(name, "gene") for name in names])
    path = tmp_path / "out.csv"
    graph.to_edgelist().to_csv(path, index=False)
    again = read_edgelist(path)
    assert again == graph
    assert again.fingerprint == graph.fingerprint
    assert set(again.input_nodes) == set(names)
