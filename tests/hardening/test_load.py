"""Under load: many threads, worker processes, two models at once, thousands of steps. Results as alone."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader as GraphLoader

from pyg_kpnn import PriorGraph
from pyg_kpnn.nn import EdgeAttention, PackedMultiheadAttention, PriorAttentionConv, PriorTransformer

# Python 3.12 warns of every fork of a process that has threads, as DataLoader makes them.
FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
GRAPH = PriorGraph.from_edges(
    [("a", "b"), ("c", "b"), ("b", "c"), ("d", "a"), ("a", "d")], sign=[1, -1, 0, 1, 1]
)
THREADS = 8


# --- threads --------------------------------------------------------------------------------------


def in_threads(job) -> None:
    """Run ``job(i)`` in eight threads at once and raise what one of them raises."""
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(job, range(THREADS)))


def test_eight_threads_call_one_layer_and_get_what_each_would_alone(case, tester, backend):
    layer = tester.make(case, torch.float32, backend=backend)
    some = tester.mask if case.takes_mask else None
    inputs = [[t.detach() * (1 + i) for t in tester.draw(case, dtype=torch.float32)] for i in range(THREADS)]
    with torch.inference_mode():
        expected = [case.call(layer, inputs[i], some) for i in range(THREADS)]

    def job(i):
        with torch.inference_mode():
            for _ in range(10):
                assert torch.equal(case.call(layer, inputs[i], some), expected[i])

    in_threads(job)


@pytest.mark.parametrize("inference", [True, False], ids=["inference", "training"])
def test_threads_with_other_edges_each_do_not_take_each_others_layout(inference):
    nodes = 29
    edges = [
        torch.randint(0, nodes, (2, 97), generator=torch.Generator().manual_seed(i)) for i in range(THREADS)
    ]
    torch.manual_seed(0)
    conv = PriorAttentionConv(4, 3, heads=2, add_self_loops=True)
    x = torch.randn(nodes, 4)

    def call(layer, i):
        leaf = x.clone().requires_grad_(not inference)
        with torch.inference_mode(inference):
            out = layer(leaf, edges[i])
        return [out] if inference else [out, *torch.autograd.grad(out.square().sum(), leaf)]

    expected = [call(copy.deepcopy(conv), i) for i in range(THREADS)]  # copies remember no layout

    def job(i):
        for step in range(30):
            which = (i + step) % THREADS  # each thread wants the edges another one has just used
            assert all(torch.equal(a, b) for a, b in zip(call(conv, which), expected[which], strict=True))

    in_threads(job)


def test_autocast_of_one_thread_is_not_that_of_another():
    torch.manual_seed(0)
    layer = PackedMultiheadAttention([0, 1, 2, 0], [1, 2, 0, 2], 3, 3, 8, 2, autocast=True)
    x = torch.randn(5, 3, 8)

    def call(half):
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            return layer(x, x, x)[0]

    expected = {half: call(half) for half in (False, True)}
    assert expected[True].dtype != expected[False].dtype

    def job(i):
        for step in range(30):
            half = bool((i + step) % 2)
            assert torch.equal(call(half), expected[half])

    in_threads(job)


# --- processes ------------------------------------------------------------------------------------


class Encoded(Dataset):
    """Samples that a frozen layer has encoded, in whatever process asks for them."""

    def __init__(self, layer: nn.Module, samples: torch.Tensor) -> None:
        self.layer, self.samples = layer, samples

    def __len__(self) -> int:
        return self.samples.shape[0]

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.layer(self.samples[index : index + 1])[0]


@FORKS
@pytest.mark.parametrize("copied", ["as_it_is", "shared"])
def test_workers_of_a_data_loader_compute_what_the_parent_would(copied):
    torch.manual_seed(0)
    model = PriorTransformer(GRAPH, embed_dim=8, num_heads=2, edge_bias="sign").requires_grad_(False).eval()
    samples = torch.randn(16, 4)
    model(samples)
    if copied == "shared":
        model.share_memory()
        assert all(p.is_shared() for p in model.parameters())
    alone = torch.stack([model(sample.unsqueeze(0))[0] for sample in samples])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # a parent that has threads; DataLoader gives its workers one
    try:
        torch.ones(300, 300) @ torch.ones(300, 300)
        loader = DataLoader(Encoded(model, samples), batch_size=4, num_workers=2)
        assert torch.equal(torch.cat(list(loader)), alone)
    finally:
        torch.set_num_threads(threads)


@FORKS
def test_mini_batches_from_workers_train_as_those_of_the_parent():
    gen = torch.Generator().manual_seed(0)
    graphs = [
        Data(x=torch.randn(n, 4, generator=gen), edge_index=torch.randint(0, n, (2, 3 * n), generator=gen))
        for n in (5, 7, 6, 9, 4, 8)
    ]
    results = []
    for workers in (0, 2):
        torch.manual_seed(1)
        conv = PriorAttentionConv(4, 3, heads=2, add_self_loops=True)
        optimiser = torch.optim.SGD(conv.parameters(), lr=0.05)
        for _ in range(2):
            for batch in GraphLoader(graphs, batch_size=2, num_workers=workers):
                optimiser.zero_grad()
                conv(batch.x, batch.edge_index).square().mean().backward()
                optimiser.step()
        results.append(copy.deepcopy(conv.state_dict()))
    assert all(torch.equal(t, results[1][name]) for name, t in results[0].items())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("name", ["packed", "layer"])
def test_a_forked_process_computes_what_its_parent_does(tester, name):
    case = tester.cases[name]
    layer = tester.make(case, chunk_size=3)
    inputs = tester.draw(case)
    case.call(layer, inputs, None).sum().backward()  # the parent has used everything before
    expected = case.call(layer, inputs, None)
    child = os.fork()
    if child == 0:
        same = False
        try:
            torch.set_num_threads(
                1
            )  # OpenMP's threads do not survive a fork, torch's own calls need this too
            same = torch.equal(case.call(layer, inputs, None), expected)
        finally:
            os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_layers_travel_to_a_spawned_process():
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
    packed = PackedMultiheadAttention(edges[0], edges[1], 3, 3, 8, 2, identity="g")
    layers = [
        (packed, (torch.randn(5, 3, 8),) * 3),
        (PriorAttentionConv(8, 4, heads=2, add_self_loops=True), (torch.randn(5, 3, 8), edges)),
        (PriorTransformer(GRAPH, embed_dim=8, num_heads=2, edge_bias="log_weight"), (torch.randn(5, 4),)),
        (copy.deepcopy(packed).half(), (torch.randn(5, 3, 8),) * 3),
    ]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for layer, arguments in layers:
            layer.requires_grad_(False).share_memory()
            expected = layer(*arguments)  # which also fills what a layer remembers
            found = pool.apply(layer, arguments)
            assert torch.equal(*(o[0] if isinstance(o, tuple) else o for o in (found, expected)))


# --- two models at once ---------------------------------------------------------------------------


def steps(model, x, optimiser):
    """One training step cut where another model may run in between."""
    torch.manual_seed(int(x.sum().item() * 1000) % 2**31)
    output = model(x)
    yield
    loss = output.square().mean()
    yield
    optimiser.zero_grad()
    loss.backward()
    yield
    optimiser.step()


def make_pair():
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = PriorTransformer(GRAPH, embed_dim=8, num_heads=2, edge_bias="sign", dropout=0.3)
        models.append((model, torch.optim.Adam(model.parameters(), lr=0.01)))
    return models


def test_two_models_trained_in_turns_are_the_models_trained_alone():
    batches = [torch.randn(6, 4, generator=torch.Generator().manual_seed(i)) for i in range(5)]
    alone = make_pair()
    for model, optimiser in alone:
        for x in batches:
            for _ in steps(model, x, optimiser):
                pass
    together = make_pair()
    for x in batches:
        runs = [steps(model, x, optimiser) for model, optimiser in together]
        while runs:
            runs = [run for run in runs if next(run, "end") != "end"]
    for (mine, _), (theirs, _) in zip(together, alone, strict=True):
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b)


def test_one_operator_inside_two_layers_serves_both(tester):
    # Layers may share parts; what an operator remembers of one must not leak into the other.
    one, two = PriorAttentionConv(4, 3, heads=2), PriorAttentionConv(4, 3, heads=2, add_self_loops=True)
    shared = EdgeAttention()
    edges, others = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([[0, 0, 1, 3], [1, 2, 3, 0]])
    x, y = torch.randn(3, 4), torch.randn(4, 4)
    expected = [one(x, edges), two(y, others), one(y, others), two(x, edges)]
    one.attention = two.attention = shared
    for _ in range(2):
        found = [one(x, edges), two(y, others), one(y, others), two(x, edges)]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


# --- a soak ---------------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    place = Path("/proc/self/statm")
    return int(place.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if place.exists() else 0


def live_tensors() -> int:
    # by type: some objects of torch answer isinstance with a warning
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("count", [20, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["model", "conv", "second_order"])
def test_memory_stays_flat_over_many_steps(kind, count):
    torch.manual_seed(0)
    nodes = 200
    graph = PriorGraph.from_edges(
        [(str(i), str((7 * i + j) % nodes)) for i in range(nodes) for j in range(1, 6)]
    )
    model = PriorTransformer(graph, embed_dim=16, num_heads=2, num_layers=1, dropout=0.1)
    conv = PriorAttentionConv(16, 8, heads=2, dropout=0.1, add_self_loops=True)
    layer = model if kind == "model" else conv
    optimiser = torch.optim.Adam(layer.parameters(), lr=1e-3)

    def step():
        optimiser.zero_grad()
        if kind == "model":
            x = torch.randn(4, graph.state_dim)
            mask = torch.rand(4, graph.state_dim) < 0.1
            loss = model(x, mask).square().mean() + model.edge_weights(x)[0].square().mean()
        else:  # new edges every time, as from a sampler
            x = torch.randn(nodes, 16, requires_grad=True)
            loss = conv(x, torch.randint(0, nodes, (2, 1000))).square().mean()
        if kind == "second_order":
            loss = torch.autograd.grad(loss, x, create_graph=True)[0].square().sum()
        loss.backward()
        optimiser.step()
        return loss.item()

    warm = max(5, count // 4)
    for _ in range(warm):
        step()
    gc.collect()
    gc.disable()  # nothing may wait for the collector, as a cycle through a graph of gradients would
    try:
        tensors, memory = live_tensors(), resident()
        losses = [step() for _ in range(count - warm)]
        assert live_tensors() <= tensors
    finally:
        gc.enable()
    grown = (resident() - memory) / 2**20
    print(f"{kind}: {count} steps, {tensors} live tensors, memory grew by {grown:.1f} MiB")
    assert grown < 16
    assert all(loss == loss for loss in losses)
