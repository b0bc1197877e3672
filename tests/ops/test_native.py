"""The native kernel: agreement with the reference, same bits on any number of threads, torch's ways in."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pyg_kpnn.ops import EdgeLayout, backends, edge_attention, native_library
from pyg_kpnn.ops.native_library import native_missing

pytestmark = pytest.mark.skipif(native_missing() is not None, reason="the native library is not built")

SHAPES = [(4, 16), (1, 16), (2, 32), (8, 16), (3, 7), (1, 1), (12, 24), (16, 3), (33, 5)]
# several heads in a vector, rows that vectors divide and rows that they do not
NARROW = [(5, 2), (4, 4), (8, 2), (16, 1), (16, 4), (17, 1), (19, 2), (7, 4), (1, 4), (6, 3)]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def problem(heads, width, dtype, *, batch=3, targets=11, sources=13, edges=97, hub=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ends = [torch.randint(n, (edges,), generator=generator) for n in (sources, targets)]
    if hub:
        ends[1] = torch.zeros_like(ends[1])
    layout = EdgeLayout(torch.stack(ends), sources, targets)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shapes = [(batch, n, heads, width) for n in (targets, sources, sources)]
    tensors = [draw(*shape).to(dtype).requires_grad_() for shape in shapes]
    bias = draw(edges, heads).to(torch.promote_types(dtype, torch.float32)).requires_grad_()
    mask = torch.rand(batch, sources, generator=generator) < 0.3
    return layout, tensors, bias, mask, draw(batch, targets, heads, width).to(dtype)


def off(found, expected):
    """Largest difference, relative to the largest entry."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).abs().max() / expected.abs().max())


def test_a_library_of_another_version_is_not_used(monkeypatch):
    monkeypatch.setattr(native_library, "_ROUTINES", (*native_library._ROUTINES, "pk_of_tomorrow"))
    assert native_library._load() == (
        "the native library is another version's, without pk_of_tomorrow: install pyg_kpnn again"
    )


@pytest.mark.parametrize("full", [False, True], ids=["plain", "bias_mask_dropout"])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("heads", "width"), SHAPES + NARROW)
def test_agrees_with_the_reference(heads, width, dtype, full):
    layout, tensors, bias, mask, grad = problem(heads, width, dtype)
    options = {"bias": bias, "key_mask": mask, "dropout_p": 0.3, "dropout_seed": torch.tensor(2**40 + 3)}
    options = options if full else {}
    leaves = [*tensors, bias] if full else tensors
    found = edge_attention(*tensors, layout, **options, backend="native")[0]
    wide = [t.detach().double().requires_grad_() for t in tensors]
    if full:
        options["bias"] = bias.detach().double().requires_grad_()
    expected = edge_attention(*wide, layout, **options, backend="reference")[0]
    assert found.dtype == dtype
    assert off(found, expected) < TOLERANCE[dtype]
    gradients = torch.autograd.grad(found, leaves, grad)
    exact = torch.autograd.grad(expected, [*wide, options["bias"]] if full else wide, grad.double())
    for mine, theirs, leaf in zip(gradients, exact, leaves, strict=True):
        assert mine.dtype == leaf.dtype
        assert off(mine, theirs) < TOLERANCE[dtype]


@pytest.mark.parametrize("shape", [(4, 16), (3, 20), (8, 2), (5, 4)])
@pytest.mark.parametrize(("edges", "hub"), [(1, False), (30_000, False), (30_000, True)])
def test_few_and_very_many_edges_into_a_target(edges, hub, shape):
    # above 8,192 edges a target is worked on in parts, which are put together in their order
    layout, tensors, bias, mask, grad = problem(*shape, torch.float32, targets=3, edges=edges, hub=hub)
    results = {}
    for backend in ("native", "torch"):
        mixed, weights = edge_attention(
            *tensors, layout, bias=bias, key_mask=mask, backend=backend, need_weights=True
        )
        results[backend] = [mixed, weights, *torch.autograd.grad(mixed, [*tensors, bias], grad)]
    for native, torch_ in zip(*results.values(), strict=True):
        torch.testing.assert_close(native, torch_, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("shape", [(4, 16), (16, 4), (3, 20)])
def test_large_outputs_that_are_written_past_the_caches(shape):
    # 8 MiB of output and more
    size = {"batch": 1, "targets": 40_000, "sources": 50, "edges": 9_000}
    layout, tensors, _, mask, _ = problem(*shape, torch.float32, **size)
    results = [edge_attention(*tensors, layout, key_mask=mask, backend=b)[0] for b in ("native", "torch")]
    torch.testing.assert_close(*results, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("shape", [(4, 16), (3, 7), (1, 8), (5, 13), (16, 4), (8, 2), (19, 2)])
def test_same_bits_on_any_number_of_threads(shape, batch):
    layout, tensors, bias, mask, grad = problem(*shape, torch.float32, batch=batch, edges=20_000, targets=5)
    before, runs = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 4, 64):  # 64: more than samples and heads, which changes how backward is cut
            torch.set_num_threads(threads)
            mixed = edge_attention(*tensors, layout, bias=bias, key_mask=mask, backend="native")[0]
            runs.append([mixed, *torch.autograd.grad(mixed, [*tensors, bias], grad)])
    finally:
        torch.set_num_threads(before)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


def test_large_scores_keep_their_digits():
    # log-sum-exp of scores near 1e4 is known to 1e-3 in float32; the weights must be better than that
    layout = EdgeLayout(torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]]), 4, 2)
    query = torch.ones(1, 2, 1, 1)
    key = torch.tensor([1e4, 1e4 + 1, -1e4, -1e4 - 1]).view(1, 4, 1, 1).requires_grad_()
    value = torch.tensor([0.0, 1.0, 0.0, 1.0]).view(1, 4, 1, 1)
    mixed, weights = edge_attention(query, key, value, layout, backend="native", need_weights=True)
    share = torch.tensor([1.0, 0.0]).sigmoid()[0]
    torch.testing.assert_close(weights.flatten(), torch.stack([1 - share, share, share, 1 - share]))
    (grad,) = torch.autograd.grad(mixed.sum(), key)
    slope = share * (1 - share)
    torch.testing.assert_close(grad.flatten(), torch.stack([-slope, slope, -slope, slope]))


@pytest.mark.parametrize(("heads", "width"), [(4, 16), (8, 4)])
def test_views_are_read_where_they_lie(heads, width):
    layout, tensors, *_ = problem(heads, width, torch.float32)
    packed = torch.cat([t[:, :11].flatten(2) for t in tensors], -1)
    layout = EdgeLayout(layout.edge_index % 11, 11, 11)
    views = [t.unflatten(-1, (heads, width)) for t in packed.split(heads * width, -1)]
    assert not views[0].is_contiguous()
    expected = edge_attention(*(v.contiguous() for v in views), layout, backend="native")[0]
    assert torch.equal(edge_attention(*views, layout, backend="native")[0], expected)
    swapped = [t.transpose(2, 3).contiguous().transpose(2, 3) for t in views]  # channels not contiguous
    assert torch.equal(edge_attention(*swapped, layout, backend="native")[0], expected)
    for changed in range(3):  # heads that do not lie side by side, of one of the three
        apart = list(views)
        apart[changed] = views[changed].transpose(1, 2).contiguous().transpose(1, 2)
        torch.testing.assert_close(edge_attention(*apart, layout, backend="native")[0], expected)
    spread = [t[:1].expand(3, -1, -1, -1) for t in views]
    assert torch.equal(edge_attention(*spread, layout, backend="native")[0][2], expected[0])


@pytest.mark.parametrize("nodes", [1, 7])
@pytest.mark.parametrize("width", [1, 2, 4, 5, 16])
def test_rows_of_any_strides_are_read_right(width, nodes):
    layout, tensors, *_ = problem(3, width, torch.float32, batch=2, targets=nodes, sources=nodes)
    tensors = [t.detach() for t in tensors]
    expected = edge_attention(*tensors, layout, backend="native")[0]
    for order in itertools.permutations(range(4)):  # which axis lies innermost, which outermost
        back = [order.index(axis) for axis in range(4)]
        moved = [t.permute(order).contiguous().permute(back) for t in tensors]
        torch.testing.assert_close(edge_attention(*moved, layout, backend="native")[0], expected)
    alike = [t[..., :1].expand_as(t) for t in tensors]  # one number a row: a stride of 0
    expected = edge_attention(*(t.contiguous() for t in alike), layout, backend="native")[0]
    torch.testing.assert_close(edge_attention(*alike, layout, backend="native")[0], expected)


@pytest.mark.parametrize(("heads", "width"), [(1, 16), (2, 32), (4, 16)])
def test_read_rows_sums_every_row_of_an_edge(heads, width):
    layout, (_, key, value), *_ = problem(heads, width, torch.float32)
    key, value = key.detach(), value.detach()
    found = native_library.read_rows(key, value, layout.target_ptr, layout.source_int32)
    each = (key.double() + value.double()).sum((2, 3))[:, layout.source]
    expected = torch.zeros(3, 11, dtype=torch.float64).index_add(1, layout.target, each)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_forward_mode_is_right_and_not_zero():
    layout, tensors, _, mask, _ = problem(2, 3, torch.float64)
    tensors = [t.detach() for t in tensors]

    def mixed(backend):
        return lambda *t: edge_attention(*t, layout, key_mask=mask, backend=backend, need_weights=True)

    found = torch.func.jvp(mixed("native"), tuple(tensors), tuple(tensors))[1]
    expected = torch.func.jvp(mixed("torch"), tuple(tensors), tuple(tensors))[1]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.abs().max() > 0.01
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_kept_for_backward_as_halves(dtype):
    layout, tensors, *_ = problem(2, 4, dtype)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        edge_attention(*tensors, layout, backend="native")
    assert sum(t.dtype == dtype for t in kept) == 3  # query, key and value
    assert sum(t.numel() for t in kept if t.dtype == torch.float32) == 3 * 11 * 2 * (4 + 2)  # results, sums


def test_weights_have_gradients():
    layout, tensors, bias, mask, _ = problem(2, 3, torch.float64)
    gradients = []
    for backend in ("native", "reference"):
        weights = edge_attention(
            *tensors, layout, bias=bias, key_mask=mask, backend=backend, need_weights=True
        )[1]
        gradients.append(torch.autograd.grad(weights.square().sum(), [tensors[0], tensors[1], bias]))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_gradients_through_mix_and_weights_together():
    layout, tensors, bias, mask, grad = problem(2, 3, torch.float64)
    gradients = []
    for backend in ("native", "reference"):
        mixed, weights = edge_attention(
            *tensors, layout, bias=bias, key_mask=mask, backend=backend, need_weights=True
        )
        loss = (mixed * grad).sum() + weights.square().sum()
        gradients.append(torch.autograd.grad(loss, [*tensors, bias]))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("full", [False, True], ids=["plain", "bias_mask_dropout"])
def test_operator_passes_opcheck(full):
    layout, tensors, bias, mask, _ = problem(2, 4, torch.float32)
    bias = bias.detach().expand(3, -1, -1).contiguous().requires_grad_()
    extra = (bias, mask, torch.tensor(5)) if full else (None, None, None)
    order = (layout.target_ptr, layout.source_int32, layout.by_target)
    back = (layout.source_ptr, layout.by_source, layout.target_by_source)
    arguments = (*tensors, *extra, *order, *back, 0.3 * full)
    results = torch.library.opcheck(torch.ops.pyg_kpnn.edge_attention.default, arguments)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiles_into_one_graph_that_calls_the_kernel():
    layout, tensors, bias, mask, grad = problem(4, 16, torch.float32)
    seen = []

    def record(graph, _):
        seen.append(str(graph.graph))
        return graph.forward

    def attend(q, k, v, b):
        return edge_attention(q, k, v, layout, bias=b, key_mask=mask)[0]

    out = torch.compile(attend, fullgraph=True, backend=record)(*tensors, bias)
    assert len(seen) == 1
    assert "pyg_kpnn.edge_attention" in seen[0]
    expected = attend(*tensors, bias)
    assert torch.equal(out, expected)
    mine = torch.autograd.grad(out, [*tensors, bias], grad)
    assert all(
        torch.equal(a, b)
        for a, b in zip(mine, torch.autograd.grad(expected, [*tensors, bias], grad), strict=True)
    )


def test_exported_programs_do_not_need_the_kernel():
    layout, tensors, *_ = problem(2, 4, torch.float32)

    class Attend(torch.nn.Module):
        def forward(self, q, k, v):
            return edge_attention(q, k, v, layout)[0]

    batch = torch.export.Dim("batch")
    shapes = tuple({0: batch} for _ in range(3))
    program = torch.export.export(Attend(), tuple(t.detach() for t in tensors), dynamic_shapes=shapes)
    assert "pyg_kpnn" not in str(program.graph)
    twice = [t.detach().repeat(2, 1, 1, 1) for t in tensors]
    torch.testing.assert_close(program.module()(*twice), Attend()(*twice))


@pytest.mark.parametrize("level", ["avx512", "avx2", "baseline"])
def test_every_level_that_runs_here_agrees(level):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch, test_native as t\n"
        "from pyg_kpnn.ops.native_library import library\n"
        "if library().pk_level().decode() != sys.argv[2]: print('skip'); sys.exit()\n"
        "for dtype in t.TOLERANCE:\n"
        "    for heads, width in t.SHAPES + t.NARROW:\n"
        "        for full in (False, True):\n"
        "            t.test_agrees_with_the_reference(heads, width, dtype, full)\n"
        "print('agrees')\n"
    )
    place = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, place, level],
        env={**os.environ, "PYG_KPNN_SIMD": level, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if done.stdout.strip() == "skip":
        pytest.skip(f"this processor has no {level}")
    assert done.stdout.strip() == "agrees"


def test_runs_in_a_forked_process():
    layout, tensors, *_ = problem(4, 16, torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # with one thread no parallel region is opened, in parent or child
    try:
        edge_attention(*tensors, layout, backend="native")
        child = os.fork()
        if child == 0:
            out = edge_attention(*tensors, layout, backend="native")[0]
            os._exit(0 if bool(out.isfinite().all()) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)


def test_missing_says_why(monkeypatch):
    monkeypatch.setattr(native_library, "_MISSING", "the native library was not built: for a test")
    assert backends()["native"] == (False, "the native library was not built: for a test")
    layout, tensors, *_ = problem(2, 4, torch.float32)
    plain = edge_attention(*tensors, layout)[0]
    assert torch.equal(plain, edge_attention(*tensors, layout, backend="torch")[0])
    with pytest.raises(ValueError, match="backend='native' cannot be used: the native library was not built"):
        edge_attention(*tensors, layout, backend="native")
