"""DREAM4: the real files, and small ones of their form."""

from __future__ import annotations

import io
import shutil
import zipfile

import numpy as np
import pytest

from pyg_kpnn.datasets import Dream4, dream4
from pyg_kpnn.datasets.raw import Source
from pyg_kpnn.errors import PriorGraphError

GENES = [f"G{i}" for i in range(1, 11)]
HEAD = "\t".join(f'"{gene}"' for gene in GENES) + "\n"


def row(value):
    return "\t".join(f"{value + i / 100:.2f}" for i in range(10)) + "\n"


def files():
    """Gold G1 to G2 and G3 to G1; the value of gene i is that of its row plus i / 100."""
    pairs = [(a, b) for a in GENES for b in GENES if a != b]
    edges = [("G1", "G2"), ("G3", "G1")]
    series = "".join(f"\n0.0\t{row(s)}50.0\t{row(s + 0.5)}" for s in (30, 40))
    return {
        "goldStandard": "".join(f"{a}\t{b}\t{int((a, b) in edges)}\n" for a, b in pairs),
        "wildtype": HEAD + row(1),
        "knockouts": HEAD + "".join(row(2 + i) for i in range(10)),
        "knockdowns": HEAD + "".join(row(12 + i) for i in range(10)),
        "multifactorial": HEAD + "".join(row(50 + i) for i in range(10)),
        "timeseries": f'"Time"\t{HEAD}{series}',
    }


def small(root, **changed):
    folder = root / "raw" / "size10_1"
    folder.mkdir(parents=True)
    for name, text in {**files(), **changed}.items():
        (folder / f"{name}.tsv").write_text(text)
    return root


# size, gold edges, samples of each experiment, series
REAL = [(10, 15, [1, 10, 10, 10, 105], 5), (100, 176, [1, 100, 100, 210], 10)]


@pytest.mark.parametrize(("size", "edges", "counts", "series"), REAL)
def test_the_real_files(tmp_path, data_dir, size, edges, counts, series):
    shutil.copytree(data_dir / "dream4" / f"size{size}_1", tmp_path / "raw" / f"size{size}_1")
    data = Dream4(tmp_path, size)
    assert (len(data.graph.nodes), data.graph.num_edges, data.graph.sign) == (size, edges, None)
    assert data.labels.bincount().tolist() == counts
    assert set(data.series.tolist()) == set(range(-1, series))
    time = data.time[data.series >= 0].reshape(series, 21)
    assert (time == 50 * np.arange(21)).all()
    # a gene that is knocked out is not expressed: so rows and columns are those meant
    out = data.labels == data.class_names.index("knockouts")
    assert (data.expression[out].gather(1, data.perturbed[out, None]) == 0).all()
    assert sorted(data.perturbed[out].tolist()) == list(range(size))


def test_genes_of_the_multifactorial_experiment_of_100_have_other_names(tmp_path, data_dir):
    """Why it is read alone: neighbours in its own gold standard correlate, in the other one they do not."""
    folder = tmp_path / "raw" / "size100_1"
    shutil.copytree(data_dir / "dream4" / "size100_1", folder)
    assert "multifactorial" not in Dream4(tmp_path, 100).class_names
    gold = data_dir / "dream4" / "gnw_goldstandard"
    shutil.copy(
        gold / "DREAM4_GoldStandard_InSilico_Size100_multifactorial_1.tsv",
        folder / "goldStandard_multifactorial.tsv",
    )
    alone = Dream4(tmp_path, 100, experiments=["multifactorial"])
    assert (alone.graph.num_edges, len(alone), alone.num_classes) == (176, 100, 1)
    apart = np.abs(np.corrcoef(alone.expression.numpy().T))
    own, other = (
        apart[tuple(graph.edge_index.tolist())].mean() for graph in (alone.graph, Dream4(tmp_path, 100).graph)
    )
    everything = apart[~np.eye(100, dtype=bool)].mean()
    shared, theirs = Dream4(tmp_path, 100).graph, alone.graph
    assert not set(shared.edges) & set(theirs.edges)
    # one network, its genes shuffled
    one, two = (
        sorted(zip(dict(g.in_degree).values(), dict(g.out_degree).values(), strict=True))
        for g in (shared.to_networkx(), theirs.to_networkx())
    )
    assert one == two
    assert own > 2 * everything
    assert other < 1.2 * everything


def test_a_small_network_by_hand(tmp_path):
    data = Dream4(small(tmp_path))
    assert data.graph.nodes == ("G1", "G10", *GENES[1:9])
    assert data.graph.edges == (("G1", "G2"), ("G3", "G1"))
    assert data.class_names == ("wildtype", "knockouts", "knockdowns", "multifactorial", "timeseries")
    assert data.labels.tolist() == [0, *[1] * 10, *[2] * 10, *[3] * 10, *[4] * 4]
    assert data.sample_names[:3] == ("wildtype 1", "knockouts G1", "knockouts G2")
    assert data.sample_names[-2:] == ("timeseries 2 at 0", "timeseries 2 at 50")
    frame = data.to_frame()
    assert frame.loc["wildtype 1", ["G1", "G2", "G10"]].tolist() == pytest.approx([1, 1.01, 1.09])
    assert frame.loc["knockdowns G3", "G1"] == 14
    assert frame.loc["multifactorial 10", "G10"] == pytest.approx(59.09)
    assert frame.loc["timeseries 2 at 50", "G4"] == pytest.approx(40.53)
    assert data.perturbed.tolist() == [-1, *[0, 2, 3, 4, 5, 6, 7, 8, 9, 1] * 2, *[-1] * 14]
    assert data.series.tolist() == [-1] * 31 + [0, 0, 1, 1]
    assert data.time[:31].isnan().all()
    assert data.time[31:].tolist() == [0, 50, 0, 50]
    item = data[-1]
    assert (item.y.tolist(), item.time.tolist(), item.series.tolist()) == ([4], [50], [1])
    assert (item.perturbed.tolist(), item.edge_index.tolist()) == ([-1], [[0, 3], [2, 0]])
    assert "edge_sign" not in item
    assert repr(data) == "Dream4(size10_1, 35 samples, 10 nodes, 2 edges, 5 classes)"


def test_a_time_that_is_not_later_begins_a_series(tmp_path):
    rows = "".join(f"{time}\t{row(1)}" for time in (0, 0, 50, 20))
    small(tmp_path, timeseries=f'"Time"\t{HEAD}{rows}')
    data = Dream4(tmp_path, experiments="timeseries")
    assert data.series.tolist() == [0, 1, 1, 2]
    assert data.sample_names[2] == "timeseries 2 at 50"


def test_some_experiments_each_in_a_folder_of_its_own(tmp_path):
    small(tmp_path)
    one = Dream4(tmp_path, experiments="knockouts")
    two = Dream4(tmp_path, experiments=["timeseries", "wildtype", "wildtype"])
    assert (one.class_names, len(one), one.labels.unique().tolist()) == (("knockouts",), 10, [0])
    assert (two.class_names, two.labels.tolist()) == (("wildtype", "timeseries"), [0, 1, 1, 1, 1])
    assert len({one.processed_dir, two.processed_dir, Dream4(tmp_path).processed_dir}) == 3
    # the name of an experiment counts, also where two tables are the same
    assert "size10_1_knockouts_" in one.processed_dir
    assert "size10_1_wildtype_timeseries_" in two.processed_dir
    (tmp_path / "raw" / "size10_1" / "knockdowns.tsv").unlink()
    assert len(Dream4(tmp_path, experiments="knockouts")) == 10  # other tables need not be there


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 50}, "'size' must be one of 10, 100. Got 50"),
        ({"size": "10"}, "'size' must be one of 10, 100. Got '10'"),
        ({"network": 0}, "'network' must be one of 1, 2, 3, 4, 5. Got 0"),
        ({"network": True}, "'network' must be one of 1, 2, 3, 4, 5. Got True"),
        ({"experiments": "knockout"}, "'experiments' must be 'wildtype', .* Got 'knockout'"),
        ({"experiments": ["wildtype", 3]}, "'experiments' must be 'wildtype', .* Got 3"),
        ({"experiments": []}, "at least one experiment. Got none"),
        ({"experiments": 7}, "'experiments' must be a sequence of experiments. Got 7"),
        (
            {"size": 100, "experiments": ["knockouts", "multifactorial"]},
            "Of 100 genes, 'multifactorial' must be read alone",
        ),
    ],
)
def test_options_that_are_none(tmp_path, options, message):
    with pytest.raises(PriorGraphError, match=message):
        Dream4(tmp_path, **options)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("goldStandard", lambda t: t[: t.rindex("G10")], "must list all 90 ordered pairs of 10 genes"),
        ("goldStandard", lambda t: t.replace("\t1\n", "\tyes\n"), "must hold numbers. Got 'yes'"),
        ("wildtype", lambda t: t + row(3), "wildtype.tsv must have 1 rows. Got 2"),
        ("knockouts", lambda t: t + row(3), "knockouts.tsv must have 10 rows. Got 11"),
        ("multifactorial", lambda t: t + row(3), "multifactorial.tsv must have 10 rows. Got 11"),
        ("knockdowns", lambda t: t.replace("G4", "g4"), "knockdowns.tsv must name the same.*lacks 'G4'"),
        ("timeseries", lambda t: t.replace("Time", "time"), "must be 'Time'. Got 'time'"),
        ("timeseries", lambda t: t.replace("50.0", "NA", 1), "Got 'NA' on line 4, column 'Time'"),
    ],
)
def test_files_that_are_not_what_they_should_be(tmp_path, file, change, message):
    small(tmp_path, **{file: change(files()[file])})
    with pytest.raises(PriorGraphError, match=message):
        Dream4(tmp_path)


def test_the_archive_of_the_challenge_is_downloaded_once(tmp_path, site, monkeypatch):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for network in (1, 2):
            stem = f"insilico_size10_{network}"
            top = "DREAM4 in-silico challenge/Size 10"
            for name, text in files().items():
                at = (
                    f"DREAM4 gold standards/{stem}_goldstandard.tsv"
                    if name == "goldStandard"
                    else f"DREAM4 training data/{stem}/{stem}_{name}.tsv"
                )
                archive.writestr(f"{top}/{at}", text)
                archive.writestr(f"{top}/Supplementary information/{stem}/{stem}_{name}.tsv", "other data")
    source = Source(site.put("/dream4.zip", file.getvalue()), 1_000_000)
    monkeypatch.setattr(dream4, "_ARCHIVE", source)
    assert (len(Dream4(tmp_path)), len(Dream4(tmp_path, network=2))) == (35, 35)
    assert site.asked == ["/dream4.zip"]
    with pytest.raises(
        PriorGraphError, match="one file that ends in 'Size 100/DREAM4 gold standards/insilico"
    ):
        Dream4(tmp_path, size=100)


def test_the_multifactorial_experiment_of_100_comes_with_its_own_gold_standard(tmp_path, site, monkeypatch):
    genes = [f"G{i}" for i in range(1, 101)]
    pairs = [(a, b) for a in genes for b in genes if a != b]
    gold = "".join(f"{a}\t{b}\t{int((a, b) == ('G7', 'G9'))}\n" for a, b in pairs)
    head, line = "\t".join(genes), "\t".join(["0.5"] * 100)
    wanted = {
        "DREAM4 gold standards/insilico_size100_multifactorial_3_goldstandard.tsv": gold,
        "DREAM4 training data/insilico_size100_3_multifactorial.tsv": f"{head}\n" + f"{line}\n" * 100,
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in wanted.items():
            archive.writestr(f"DREAM4 in-silico challenge/Size 100 multifactorial/{name}", text)
        archive.writestr("Size 100/DREAM4 gold standards/insilico_size100_3_goldstandard.tsv", "another")
    monkeypatch.setattr(dream4, "_ARCHIVE", Source(site.put("/dream4.zip", file.getvalue()), 1_000_000))
    data = Dream4(tmp_path, 100, 3, "multifactorial")
    assert (data.graph.edges, len(data), data.class_names) == ((("G7", "G9"),), 100, ("multifactorial",))
    assert {path.name for path in (tmp_path / "raw" / "size100_3").iterdir()} == {
        "goldStandard_multifactorial.tsv",
        "multifactorial.tsv",
    }
    with pytest.raises(PriorGraphError, match="ends in 'Size 100/DREAM4 training data/insilico_size100_3/"):
        Dream4(tmp_path, 100, 3, "knockouts")
