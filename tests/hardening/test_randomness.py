"""Dropout: one mask a call, drawn from one seed, the same wherever it is computed again."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.checkpoint import checkpoint

from pyg_kpnn.nn import EdgeAttention, PackedMultiheadAttention, PriorAttentionConv
from pyg_kpnn.ops import EdgeLayout, edge_attention
from pyg_kpnn.ops.dropout import draw_seed

COMPILER = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
NODES, HEADS, WIDTH = 11, 2, 3
EDGES = torch.randint(0, NODES, (2, 41), generator=torch.Generator().manual_seed(0))


def draw(*lead: int, seed: int = 1) -> list[Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(*lead, NODES, HEADS, WIDTH, generator=gen, dtype=torch.float64) for _ in range(5)]


def assert_one_mask(call, value: Tensor, grads: Tensor, other: Tensor, orders: int) -> None:
    """``call`` is linear in ``value``, so forward and backward see the same edges exactly when
    <g, call(v)> = <call*(g), v>, and the derivative of the backward pass too when
    <g, call(h)> = <call*(g), h>.
    """
    value = value.clone().requires_grad_()
    out = call(value)
    if orders == 0:  # checkpoint with use_reentrant=True knows no other way
        out.backward(grads)
        back = value.grad
    else:
        probe = grads.clone().requires_grad_()
        (back,) = torch.autograd.grad(out, value, probe, create_graph=orders == 2)
    torch.testing.assert_close((out * grads).sum(), (back * value).sum(), rtol=1e-11, atol=1e-12)
    if orders == 2:
        (again,) = torch.autograd.grad(back, probe, other)
        torch.testing.assert_close((again * grads).sum(), (back * other).sum(), rtol=1e-11, atol=1e-12)
    plain = call(value)  # another draw
    assert not torch.allclose(plain, out)


# --- computed again -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["plain", "checkpoint", "reentrant"])
def test_forward_backward_and_second_backward_drop_the_same_edges(backend, chunk, how):
    query, key, value, grads, other = draw(2)
    attend = EdgeAttention(dropout=0.4, chunk_size=chunk, backend=backend)

    def call(value):
        return attend(query, key, value, EDGES)[0]

    recomputed = {
        "plain": call,
        "checkpoint": lambda v: checkpoint(call, v, use_reentrant=False),
        "reentrant": lambda v: checkpoint(call, v, use_reentrant=True),
    }[how]
    assert_one_mask(recomputed, value, grads, other, 0 if how == "reentrant" else 2)


@COMPILER
@pytest.mark.parametrize("mode", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("need_weights", [False, True], ids=["output", "weights"])
def test_forward_and_backward_of_a_program_drop_the_same_edges(mode, need_weights):
    query, key, value, grads, other = draw(2)
    attend = EdgeAttention(dropout=0.4)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda v: attend(query, key, v, EDGES, need_weights=need_weights)[0], backend=mode, fullgraph=True
    )
    assert_one_mask(compiled, value, grads, other, 1)
    torch._dynamo.reset()


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_layer_is_the_layer_to_the_bit(case, tester, backend, reentrant):
    layer = tester.make(case, backend=backend, dropout=0.4).train()
    for module in layer.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
    results = []
    for again in (False, True):
        inputs = tester.draw(case)
        layer.zero_grad(set_to_none=True)
        torch.manual_seed(7)

        def call(*tensors):
            return case.call(layer, list(tensors), None)

        output = checkpoint(call, *inputs, use_reentrant=reentrant) if again else call(*inputs)
        tester.loss(output).backward()
        grads = [t.grad for t in (*inputs, *layer.parameters())]
        results.append([output, *grads, torch.get_rng_state()])
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)


# --- per sample -----------------------------------------------------------------------------------


def test_vmap_draws_per_sample_or_once_as_asked(backend):
    layout = EdgeLayout(EDGES, NODES, NODES)
    query, key, value, *_ = draw(4)
    options = {"dropout_p": 0.5, "backend": backend, "need_weights": True}

    def sample(q, k, v):
        return edge_attention(q, k, v, layout, **options)

    for randomness in ("different", "same"):
        torch.manual_seed(3)
        mixed, weights = vmap(sample, randomness=randomness)(query, key, value)
        torch.manual_seed(3)
        seeds = torch.randint(0, 2**62, (4,)) if randomness == "different" else [draw_seed(query.device)] * 4
        for b in range(4):
            seed = torch.as_tensor(seeds[b])
            one = edge_attention(query[b], key[b], value[b], layout, dropout_seed=seed, **options)
            torch.testing.assert_close((mixed[b], weights[b]), one, rtol=1e-12, atol=1e-13)
        same = all(torch.equal(weights[0] == 0, other == 0) for other in weights[1:])
        assert same == (randomness == "same")
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(sample)(query, key, value)


def test_gradients_inside_vmap_drop_what_forward_drops(backend, chunk):
    attend = EdgeAttention(dropout=0.5, chunk_size=chunk, backend=backend)
    query, key, value, grads, _ = draw(4)

    def sample(q, k, v, g):
        # linear in v, so its value is the inner product of v and its own gradient
        loss, slope = torch.func.grad_and_value(lambda v: (attend(q, k, v, EDGES)[0] * g).sum())(v)[::-1]
        return loss, (slope * v).sum()

    torch.manual_seed(5)
    loss, product = vmap(sample, randomness="different")(query, key, value, grads)
    torch.testing.assert_close(loss, product, rtol=1e-11, atol=1e-12)


def test_seeds_mapped_over_are_used_where_edges_are_dropped(backend):
    layout = EdgeLayout(EDGES, NODES, NODES)
    query, key, value, *_ = draw(4)
    seeds = torch.arange(4)
    for p in (0.0, 0.5):

        def call(q, k, v, seed, p=p):
            return edge_attention(q, k, v, layout, dropout_p=p, dropout_seed=seed, backend=backend)[0]

        found = vmap(call)(query, key, value, seeds)
        for b in range(4):
            one = call(query[b], key[b], value[b], seeds[b])
            torch.testing.assert_close(found[b], one, rtol=1e-12, atol=1e-13)


# --- streams --------------------------------------------------------------------------------------


def test_one_seed_a_call_and_operator_is_all_that_is_drawn(case, tester):
    layer = tester.make(case, dropout=0.5).train()
    operators = sum(isinstance(m, EdgeAttention) for m in layer.modules())
    inputs = tester.draw(case)
    numpy_state, python_state = np.random.get_state()[1].copy(), random.getstate()
    for call, calls in ((case.call, 1), (case.weights, 2 if case.depth == 2 else 1)):
        torch.manual_seed(23)
        output = flat(call(layer, inputs, None))
        sum(t.sum() for t in output if t.is_floating_point()).backward()
        state = torch.get_rng_state()
        torch.manual_seed(23)
        for _ in range(operators * calls):
            draw_seed(torch.device("cpu"))
        assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert random.getstate() == python_state


def flat(outputs) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else [t for part in outputs for t in flat(part)]


def test_a_generator_replays_and_leaves_other_streams_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    generator = torch.Generator().manual_seed(5)
    start, states = generator.get_state(), []
    for _ in range(2):
        generator.set_state(start)
        layer = PackedMultiheadAttention([0, 1], [1, 2], 3, 3, 4, 2, generator=generator)
        states.append([p.detach().clone() for p in layer.parameters()])
        assert not torch.equal(generator.get_state(), start)
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


# --- threads and determinism ----------------------------------------------------------------------


def big_layers():
    """Doors large enough for torch and the kernels to share the work among threads."""
    gen = torch.Generator().manual_seed(0)
    nodes = 200
    pairs = torch.randperm(nodes * nodes, generator=gen)[:5000]
    edges = torch.stack([pairs // nodes, pairs % nodes])
    torch.manual_seed(0)
    packed = PackedMultiheadAttention(edges[0], edges[1], nodes, nodes, 32, 4, dropout=0.4)
    conv = PriorAttentionConv(32, 8, heads=4, dropout=0.4, add_self_loops=True)
    yield packed, lambda x: packed(x, x, x, need_weights=True)
    yield conv, lambda x: (conv(x, edges), None)


@pytest.mark.parametrize("backend", ["torch", "scatter", "native"], indirect=True)
@pytest.mark.parametrize("chunk_size", [None, pytest.param(1000, marks=pytest.mark.slow)])
def test_one_seed_gives_the_same_bits_on_any_number_of_threads(backend, chunk_size):
    before = torch.get_num_threads()
    x = torch.randn(2, 200, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
    try:
        for layer, call in big_layers():
            layer.backend, layer.chunk_size = backend, chunk_size
            runs = []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                torch.manual_seed(7)
                output, weights = call(x)
                loss = output.square().sum() + (0.0 if weights is None else weights.square().sum())
                runs.append([output, *torch.autograd.grad(loss, [x, *layer.parameters()])])
            for run in runs[1:]:
                assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))
    finally:
        torch.set_num_threads(before)


def test_deterministic_algorithms_change_nothing(case, tester, backend, chunk):
    # Under this switch torch refuses what has no fixed order and fills fresh memory with NaN.
    layer = tester.make(case, backend=backend, chunk_size=chunk, dropout=0.4).train()
    some = tester.mask if case.takes_mask else None
    results = []
    try:
        for switch in (False, True):
            torch.use_deterministic_algorithms(switch)
            inputs = tester.draw(case)
            torch.manual_seed(3)
            output = case.call(layer, inputs, some)
            results.append([output, *tester.derivatives(output, [*inputs, *layer.parameters()])])
    finally:
        torch.use_deterministic_algorithms(False)
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)


# --- two processes --------------------------------------------------------------------------------

WORKER = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from pyg_kpnn import PriorGraph, PriorTransformer

rank, place = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
edges = [("a", "b"), ("c", "b"), ("b", "c"), ("d", "a"), ("a", "d")]
graph = PriorGraph.from_edges(edges, sign=[1, -1, 0, 1, 1])

def model():
    torch.manual_seed(0)
    return PriorTransformer(graph, embed_dim=8, num_heads=2, edge_bias="sign", dropout=0.3).double()

def run(call, of):
    x = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(10 + of))
    torch.manual_seed(100 + of)
    call(x).square().mean().backward()

dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
for reentrant in (None, False):
    joint = model()
    parallel = DistributedDataParallel(joint)
    run(parallel if reentrant is None else lambda x: checkpoint(parallel, x, use_reentrant=False), rank)
    alone = [model() for _ in range(2)]
    for of, other in enumerate(alone):
        run(other, of)
    for (name, mine), *parts in zip(joint.named_parameters(), *(m.parameters() for m in alone)):
        mean = (parts[0].grad + parts[1].grad) / 2
        torch.testing.assert_close(mine.grad, mean, rtol=1e-12, atol=1e-12, msg=name)
dist.barrier()
dist.destroy_process_group()
print("agrees")
"""


@pytest.mark.slow
def test_two_processes_drop_their_own_edges_and_average_the_gradients(tmp_path):
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER, str(rank), str(tmp_path / "meeting")],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for worker in workers:
        out, err = worker.communicate(timeout=300)
        assert worker.returncode == 0, err
        assert out.strip().endswith("agrees")
