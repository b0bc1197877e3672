"""BEELINE's curated models: the real files, and small ones of their form."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import shutil
import zipfile

import numpy as np
import pytest
import torch
from torch_geometric.loader import DataLoader

from pyg_kpnn.datasets import BeelineCurated, beeline
from pyg_kpnn.datasets.raw import Source
from pyg_kpnn.errors import PriorGraphError

# genes, edges, rows of the network, cells of one lineage each and of several (counted with awk and pandas)
REAL = {"GSD": (19, 79, 86, 2, 558), "HSC": (11, 30, 30, 4, 221), "mCAD": (5, 14, 14, 2, 428)}
SMALL = {
    "refNetwork.csv": "Gene1,Gene2,Type\nb,a,+\na,b,-\nb,a,+\na,a,-\n",
    "ExpressionData.csv": ",c1,c2,c3\nb,1,2,3\na,4,5,6.5\n",
    "PseudoTime.csv": "PseudoTime1,PseudoTime2\nc3,0.5,NA\nc1,NA,7\nc2,1,2\n",
}


def small(root, name="GSD", **changed):
    folder = root / "raw" / name
    folder.mkdir(parents=True)
    for file, text in SMALL.items():
        (folder / file).write_text(changed.get(file.split(".")[0], text))
    return root


@pytest.mark.parametrize("name", list(REAL))
def test_the_real_files(tmp_path, data_dir, name):
    genes, edges, rows, lineages, several = REAL[name]
    shutil.copytree(data_dir / "beeline" / name, tmp_path / "raw" / name)
    data = BeelineCurated(tmp_path, name)
    assert (len(data), len(data.graph.nodes), data.graph.num_edges) == (2000, genes, edges)
    with (tmp_path / "raw" / name / "refNetwork.csv").open() as file:
        listed = [
            (row["Gene1"], row["Gene2"], {"+": 1, "-": -1}[row["Type"]]) for row in csv.DictReader(file)
        ]
    assert len(listed) == rows
    got = {(s, t, sign) for (s, t), sign in zip(data.graph.edges, data.graph.sign.tolist(), strict=True)}
    assert got == set(listed)
    assert data.class_names == (*(f"PseudoTime{i + 1}" for i in range(lineages)), "several")
    assert data.labels.bincount(minlength=lineages + 1)[-1] == several
    with (tmp_path / "raw" / name / "ExpressionData.csv").open() as file:
        cells, *lines = csv.reader(file)
    by_gene = {line[0]: np.array(line[1:], dtype=np.float32) for line in lines}
    wanted = np.stack([by_gene[gene] for gene in data.graph.nodes], axis=1)
    np.testing.assert_array_equal(data.expression.numpy(), wanted)
    assert list(data.sample_names) == cells[1:]


def test_a_small_network_by_hand(tmp_path):
    data = BeelineCurated(small(tmp_path), "GSD")
    assert data.graph.edges == (("a", "a"), ("a", "b"), ("b", "a"))
    assert data.expression.tolist() == [[4, 1], [5, 2], [6.5, 3]]  # columns a, b
    assert data.class_names == ("PseudoTime1", "PseudoTime2", "several")
    assert data.labels.tolist() == [1, 2, 0]
    nan = float("nan")
    np.testing.assert_array_equal(data.pseudotime, np.array([[nan, 7], [1, 2], [0.5, nan]], np.float32))
    item = data[2]
    assert (item.x.tolist(), item.y.tolist(), item.num_nodes) == ([[6.5], [3]], [0], 2)
    assert (item.edge_index.tolist(), item.edge_sign.tolist()) == ([[0, 0, 1], [0, 1, 0]], [-1, -1, 1])
    assert item.pseudotime.shape == (1, 2)
    frame = data.to_frame(label="lineage")
    assert frame.loc["c2"].tolist() == [5, 2, "several"]
    assert frame.columns.tolist() == ["a", "b", "lineage"]
    assert data[1:].class_counts() == {"PseudoTime1": 1, "PseudoTime2": 0, "several": 1}
    assert data[2:].class_counts() == {"PseudoTime1": 1, "PseudoTime2": 0, "several": 0}
    assert repr(data) == "BeelineCurated(GSD, 3 cells, 2 nodes, 3 edges, 3 classes)"
    with pytest.raises(PriorGraphError, match=r"name of a node\. Got 'a'"):
        data.to_frame(label="a")


def test_slices_batches_transforms_and_filters(tmp_path):
    def double(item):
        item.x = item.x * 2
        return item

    data = BeelineCurated(small(tmp_path), transform=double)
    assert data[1:].expression.tolist() == [[5, 2], [6.5, 3]]
    assert data[1:].to_frame().index.tolist() == ["c2", "c3"]
    assert (data[0].x.tolist(), data[0].x.tolist()) == ([[8], [2]], [[8], [2]])
    batch = next(iter(DataLoader(data, batch_size=3)))
    assert batch.edge_index.tolist() == [[0, 0, 1, 2, 2, 3, 4, 4, 5], [0, 1, 0, 2, 3, 2, 4, 5, 4]]
    assert batch.pseudotime.shape == (3, 2)
    kept = BeelineCurated(tmp_path, pre_filter=lambda item: item.y == 0, force_reload=True)
    assert (kept.sample_names, kept.labels.tolist(), len(kept)) == (("c3",), [0], 1)
    assert (kept.expression.tolist(), kept.pseudotime.nan_to_num(-1).tolist()) == ([[6.5, 3]], [[0.5, -1]])
    with pytest.raises(PriorGraphError, match=r"one cell\. It dropped all 3 of GSD"):
        BeelineCurated(tmp_path, pre_filter=lambda _: False, force_reload=True)
    changed = BeelineCurated(tmp_path, pre_transform=double, force_reload=True)
    assert changed[0].x.tolist() == [[8], [2]]
    with pytest.warns(UserWarning, match="another pre_transform"):
        BeelineCurated(tmp_path)


def test_samples_are_read_once_and_again_where_the_raw_files_changed(tmp_path, monkeypatch):
    small(tmp_path)
    assert BeelineCurated(tmp_path)[0].x.tolist() == [[4], [1]]
    calls = []
    process = BeelineCurated.process
    monkeypatch.setattr(BeelineCurated, "process", lambda self: (calls.append(1), process(self)))
    assert BeelineCurated(tmp_path)[0].x.tolist() == [[4], [1]]
    assert calls == []
    BeelineCurated(tmp_path, force_reload=True)
    assert calls == [1]
    path = tmp_path / "raw" / "GSD" / "ExpressionData.csv"
    path.write_text(path.read_text().replace("a,4", "a,9"))
    assert BeelineCurated(tmp_path)[0].x.tolist() == [[9], [1]]
    assert calls == [1, 1]


def test_no_pickle_is_read(tmp_path):
    data = BeelineCurated(small(tmp_path))
    torch.save(print, data.processed_paths[1])
    with pytest.raises(PriorGraphError, match=r"plain data.*force_reload=True"):
        BeelineCurated(tmp_path)


@pytest.mark.parametrize("key", ["pseudotime", "names", "class_names"])
@pytest.mark.parametrize("value", [None, torch.zeros(2, 2), ["c1", "c2"], "abc", [1, 2, 3]])
def test_a_table_of_other_cells_is_refused(tmp_path, key, value):
    path = BeelineCurated(small(tmp_path)).processed_paths[1]
    table = torch.load(path, weights_only=True)
    torch.save({**table, key: value}, path)
    with pytest.raises(PriorGraphError, match=r"table of cells with 2 genes.*force_reload=True"):
        BeelineCurated(tmp_path)
    assert len(BeelineCurated(tmp_path, force_reload=True)) == 3


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("refNetwork", "source,target\na,b\n", "no column 'Gene1'|'Gene1'"),
        (
            "refNetwork",
            "Gene1,Gene2,Type\nb,a,+\na,x,-\n",
            "ExpressionData.csv must name the same.*lacks 'x'",
        ),
        ("ExpressionData", ",c1,c2\nb,1,2\na,4,5\n", "PseudoTime.csv must name the same.*also has 'c3'"),
        ("ExpressionData", ",c1,c2,c3\nb,1,2,3\na,4,5,x\n", "Got 'x' on line 3, column 'c3'"),
        ("ExpressionData", ",c1,c2,c3\nb,1,2,3\na,4,5,NA\n", "Got 'NA' on line 3"),
        (
            "PseudoTime",
            "P1,P2\nc3,NA,NA\nc1,NA,7\nc2,1,2\n",
            "Every cell must be in a lineage. Got none for 'c3'",
        ),
    ],
)
def test_files_that_are_not_what_they_should_be(tmp_path, file, text, message):
    small(tmp_path, **{file: text})
    with pytest.raises(PriorGraphError, match=message):
        BeelineCurated(tmp_path)


@pytest.mark.parametrize("name", ["gsd", "THP1", None, 3, "../GSD"])
def test_names_that_are_none(tmp_path, name):
    with pytest.raises(PriorGraphError, match="'name' must be 'GSD', 'HSC', 'mCAD' or 'VSC'"):
        BeelineCurated(tmp_path, name)
    with pytest.raises(PriorGraphError, match="'root' must be a folder"):
        BeelineCurated(None)


def test_the_archive_is_downloaded_once_for_all_names(tmp_path, site, monkeypatch):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("GSD", "VSC"):
            for member, text in SMALL.items():
                content = text.replace("6.5", "8") if name == "VSC" else text
                archive.writestr(f"BEELINE-data/inputs/Curated/{name}/{name}-2000-1/{member}", content)
                archive.writestr(f"BEELINE-data/inputs/Curated/{name}/{name}-2000-1-50/{member}", "dropouts")
    body = file.getvalue()
    md5 = hashlib.md5(body).hexdigest()
    monkeypatch.setattr(beeline, "_ARCHIVE", Source(site.put("/data.zip", body), 100_000, f"md5:{md5}"))
    assert BeelineCurated(tmp_path, "GSD").expression[2].tolist() == [6.5, 3]
    assert BeelineCurated(tmp_path, "VSC").expression[2].tolist() == [8, 3]
    assert site.asked == ["/data.zip"]
    assert sorted(path.name for path in (tmp_path / "raw").iterdir()) == [
        "BEELINE-data.zip",
        "GSD",
        "VSC",
    ]
    # a lost file comes back out of the archive, and one that is there stays as it is
    (tmp_path / "raw" / "GSD" / "PseudoTime.csv").unlink()
    mine = SMALL["ExpressionData.csv"].replace("6.5", "7")
    (tmp_path / "raw" / "GSD" / "ExpressionData.csv").write_text(mine)
    assert BeelineCurated(tmp_path, "GSD").expression[2].tolist() == [7, 3]
    with pytest.raises(PriorGraphError, match="one file that ends in 'inputs/Curated/HSC/"):
        BeelineCurated(tmp_path, "HSC")


def test_the_address_is_the_published_one():
    assert beeline._ARCHIVE.url.startswith("https://zenodo.org/records/3701939/files/BEELINE-data.zip")
    assert re.fullmatch("md5:[0-9a-f]{32}", beeline._ARCHIVE.checksum)
