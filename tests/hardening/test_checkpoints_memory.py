"""A state dict of two gigabytes is loaded with room for little more: each in a process of its own.

What counts is memory that is not backed by a file (RssAnon of Linux), asked for every few milliseconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc"),
]

CHILD = """
import json, sys, threading, time
import torch
from torch import nn
from pyg_kpnn import PackedMultiheadAttention, PriorGraphError, load_checkpoint
from pyg_kpnn.checkpoint import AllOrNothing

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1024

class Ours(AllOrNothing):
    def __init__(self):
        super().__init__()
        # weights of 1.7 GiB, and 16 million edges: indices of 256 MiB
        place = torch.arange(4_000)
        source, target = torch.meshgrid(place, place, indexing="ij")
        self.attention = PackedMultiheadAttention(source.reshape(-1), target.reshape(-1), 4_000, 4_000, 8, 2)
        self.table = nn.ModuleList(nn.Embedding(56_000, 1_024) for _ in range(8))

torch.set_num_threads(1)
how, path = sys.argv[1:]
model = Ours()
if how == "write":
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    torch.save(model.state_dict(), path)
    sys.exit()
state = torch.load(path, weights_only=True, mmap=how != "in memory")
bytes_of_state = sum(entry.numel() * entry.element_size() for entry in state.values())
if how == "refused":
    state["table.7.weight"] = state["table.7.weight"][:-1]
before = peak = anonymous()
done = False

def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.002)

watcher = threading.Thread(target=watch)
watcher.start()
begun = time.monotonic()
try:
    if how == "method":
        model.load_state_dict(state)
    else:
        load_checkpoint(model, state)
except PriorGraphError as error:
    assert how == "refused" and "table.7.weight" in str(error), error
took = time.monotonic() - begun
done = True
watcher.join()
loaded = [bool((parameter == 0.5).all()) for parameter in model.parameters()]
more = peak - before
print(json.dumps({"state": bytes_of_state / 2**20, "more": more, "seconds": took, "loaded": sum(loaded)}))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "model.bin"
    subprocess.run([sys.executable, "-c", CHILD, "write", str(path)], check=True)
    yield path
    path.unlink()


@pytest.mark.parametrize("how", ["mapped", "in memory", "method", "refused"])
def test_two_gigabytes_load_without_a_second_copy(saved, how, capsys):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, how, str(saved)], check=True, capture_output=True, text=True
    )
    got = json.loads(done.stdout)
    with capsys.disabled():
        print(
            f"\n{how}: {got['state']:,.0f} MiB in {got['seconds']:.1f} s, {got['more']:.0f} MiB more", end=" "
        )
    assert got["state"] > 1_990
    assert (got["loaded"] == 16) == (how != "refused")
    assert got["more"] < 100, "MiB beside the model and the state dict"
