"""A table of a million edges in a process of limited memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource
import numpy as np, pandas as pd, torch
from pyg_kpnn import PriorGraph, PriorTransformer
from pyg_kpnn.explain import edge_weights

torch.set_num_threads(2)
nodes, edges, samples = 20_000, 1_000_000, 64
rng = np.random.default_rng(0)
pairs = rng.choice(nodes * nodes, edges, replace=False)
names = np.array([f"gene{i}" for i in range(nodes)], dtype=object)
frame = pd.DataFrame({"source": names[pairs // nodes], "target": names[pairs % nodes]})
graph = PriorGraph.from_pandas(frame)
assert graph.num_edges == edges and graph.num_nodes == nodes
torch.manual_seed(0)
model = PriorTransformer(graph, embed_dim=16, num_heads=4, num_layers=2, add_self_loops=False).eval()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
table = edge_weights(model, torch.randn(samples, nodes))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert len(table) == 2 * 4 * edges and (table.samples == samples).all()
sums = table[table.layer == 1].groupby(["head", "target"], observed=True).weight.sum()
assert np.allclose(sums, 1.0, atol=1e-4)
print(before, peak)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts kilobytes on Linux")
def test_a_million_edges_stay_under_four_gigabytes():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, peak = map(int, done.stdout.split())
    print(f"peak {peak / 2**20:.2f} GiB, {before / 2**20:.2f} before the table")
    assert peak * 1024 < 4e9
