"""Which edges two groups of samples attend along differently: effect sizes and permutation tests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PriorGraphError
from ..nn.checks import positive_int
from ..prior.names import show
from .batches import Batches, SampleLabels
from .moments import Moments
from .permutations import false_discovery, permuted_labels
from .weighted_edges import WeightedEdges

if TYPE_CHECKING:
    import pandas as pd

    from ..prior import PriorGraph

__all__ = ["differential_edges"]


def differential_edges(
    model: Any,
    data: Any,
    labels: Any,
    a: Any,
    b: Any,
    *,
    n_permutations: int = 999,
    edges: Any = None,
    seed: int = 0,
    within: Any = None,
    layer: Any = None,
    heads: str = "mean",
    batch_size: int = 64,
    key_padding_mask: Any = None,
    graph: PriorGraph | None = None,
    block_bytes: int = 2**29,
) -> pd.DataFrame:
    r"""Compare the attention weights of samples labelled ``a`` with those labelled ``b``, edge by edge.

    Parameters
    ----------
    model, data, batch_size, key_padding_mask, graph
        As in :func:`edge_weights`. ``data`` is gone through several times.
    labels : sequence
        One label a sample, in the order of ``data``; samples with other labels are left out.
    a, b : label
        The two to compare, at least two samples each.
    n_permutations : int, default 999
        How often labels are permuted: the same permutations for every edge.
    edges : sequence of (source, target), optional
        Test these only, by name; then the correction is for these.
    seed : int, default 0
        Of a private generator; the global ones stay as they are.
    within : sequence, optional
        One donor or batch a sample: labels are exchanged only among samples of the same one.
    layer : int or sequence of int, optional
        Which layers; all by default.
    heads : {"mean", "each"}, default "mean"
        Test the mean over heads, or every head.
    block_bytes : int, default 2**29
        See Notes.

    Returns
    -------
    pandas.DataFrame
        Columns ``layer``, ``head``, ``source``, ``target`` as in :func:`edge_weights`; ``mean_a``,
        ``mean_b``, ``difference`` (a less b), ``cohens_d`` (the difference over the pooled standard
        deviation; NaN where that is 0), ``p_value``, ``q_value`` (Benjamini-Hochberg over all rows),
        ``samples_a`` and ``samples_b``. An edge whose source is masked in all samples of a group has NaN.

    Raises
    ------
    PriorGraphError
        If an argument is not as above, an edge is not in the graph, or ``within`` leaves nothing to
        exchange.

    Notes
    -----
    **Test.** Two-sided, by the absolute difference of means: :math:`p = (1 + c) / (1 + n)` where c of n
    permutations give a difference at least as large. Differences closer than the rounding of the weights
    count as equal. The smallest possible p is 1 / (1 + n): for q values below 0.05 among a million edges
    choose n accordingly, or fewer edges.

    **Memory.** For n permutations and S samples, n S bytes of labels, the weights of a batch in one layer,
    and ``block_bytes`` for the sums of one block of edges: 8 (n + 1) bytes for an edge, layer and head, three
    times that at the end of a block. Samples are not kept; the model runs over all of them once a block.

    Examples
    --------
    >>> import torch
    >>> from pyg_kpnn import PriorGraph, PriorTransformer
    >>> graph = PriorGraph.from_edges([("a", "t"), ("b", "t")])
    >>> model = PriorTransformer(graph, embed_dim=8, num_heads=2, num_layers=1)
    >>> table = differential_edges(model, torch.randn(8, 3), list("xxxxyyyy"), "x", "y", n_permutations=99)
    >>> table.columns.tolist()[4:]
    ['mean_a', 'mean_b', 'difference', 'cohens_d', 'p_value', 'q_value', 'samples_a', 'samples_b']
    """
    weighted = WeightedEdges(model, graph, layer, heads)
    count = positive_int("n_permutations", n_permutations)
    block_bytes = positive_int("block_bytes", block_bytes)
    chosen = _chosen(weighted, edges)
    known = SampleLabels(labels, "labels")
    if known.from_batches:
        raise PriorGraphError("labels must be a sequence, one a sample, got 'y'. Collect them first.")
    batches = weighted.batches(data, batch_size, key_padding_mask, True)
    first, used = _groups(known, a, b)
    if batches.count is not None:
        known.check(batches.count)
    strata = None
    if within is not None:
        donors = SampleLabels(within, "within")
        donors.check(len(known.values))
        codes = {label: code for code, label in enumerate(dict.fromkeys(donors.values))}
        strata = np.array([codes[label] for label in donors.values])[used]
    permuted = torch.from_numpy(permuted_labels(first[used], strata, count, seed))
    # three arrays of this size are alive when a block is compared, and one that has no axis of heads
    fits = block_bytes // (8 * (count + 1) * len(weighted.layers) * (3 * weighted.heads + 1))
    size = max(1, min(len(chosen), fits))
    batches.again(math.ceil(len(chosen) / size), f"block_bytes={block_bytes} for {len(chosen)} edges")
    parts = [
        _block(weighted, batches, chosen[start : start + size], permuted, used, known, block_bytes)
        for start in range(0, len(chosen), size)
    ]
    return _frame(weighted, chosen, np.concatenate(parts, axis=2))


def _groups(known: SampleLabels, a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    """``(S,)`` whether a sample is in a, and positions of those in a or b."""
    among = list(dict.fromkeys(known.values))
    known.known(a, "a", among)
    known.known(b, "b", among)
    if a == b:
        raise PriorGraphError(f"a and b must be different labels, got {show(a)} twice.")
    first = np.array([label == a for label in known.values])
    second = np.array([label == b for label in known.values])
    for name, label, group in (("a", a, first), ("b", b, second)):
        if group.sum() < 2:
            raise PriorGraphError(f"{name} must label at least 2 samples, got 1 labelled {show(label)}.")
    return first, np.flatnonzero(first | second)


def _chosen(weighted: WeightedEdges, edges: Any) -> np.ndarray:
    """Positions of the edges to test."""
    if edges is None:
        return np.arange(weighted.nnz)
    if isinstance(edges, (str, bytes)) or not hasattr(edges, "__iter__"):
        raise PriorGraphError(f"edges must be a sequence of (source, target), got {show(edges)}.")
    ends = zip(weighted.source.tolist(), weighted.target.tolist(), strict=True)
    loops = {(s, t): place for place, (s, t) in enumerate(ends) if place >= weighted.graph.nnz}
    found: list[int] = []
    for pair in edges:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise PriorGraphError(f"An entry of edges must be (source, target), got {show(pair)}.")
        units: Any = None
        if pair[0] == pair[1] and pair[0] in weighted.graph.source_nodes and loops:
            some = weighted.graph.node_units(pair[0])
            units = [loops[unit, unit] for unit in range(some.start, some.stop) if (unit, unit) in loops]
        found.extend(units or weighted.graph.edge_location(*pair))
    if not found or len(set(found)) < len(found):
        raise PriorGraphError(f"edges must be different and at least one, got {show(edges)}.")
    return np.array(found)


def _block(
    weighted: WeightedEdges,
    batches: Batches,
    chosen: np.ndarray,
    permuted: Tensor,
    used: np.ndarray,
    known: SampleLabels,
    block_bytes: int,
) -> np.ndarray:
    """``(layers * heads, 6, edges)``: means, pooled deviation, p-value and samples of a and b."""
    index = torch.from_numpy(chosen)
    sources, owner = torch.unique(weighted.source[index], return_inverse=True)
    rows = len(permuted)
    device = weighted.device
    sums = {n: torch.zeros(rows, len(chosen), weighted.heads, dtype=torch.float64) for n in weighted.layers}
    totals = {n: torch.zeros(len(chosen), weighted.heads, dtype=torch.float64) for n in weighted.layers}
    moments = {n: [Moments(len(chosen), weighted.heads) for _ in "ab"] for n in weighted.layers}
    lived = {n: torch.zeros(rows, len(sources), dtype=torch.float64) for n in weighted.layers}
    all_lived = {n: torch.zeros(len(sources), dtype=torch.float64) for n in weighted.layers}
    limit = weighted.at_a_time(block_bytes)
    seen = 0
    for whole in batches:
        inside = used[(used >= seen) & (used < seen + len(whole))]
        known.take(whole, seen)
        for start in range(0, len(inside), limit):
            places = inside[start : start + limit]
            batch = whole.rows(torch.from_numpy(places - seen))
            which = np.searchsorted(used, places)
            chance = permuted[:, which]
            first = chance[0]

            def take(
                layer: int, weights: Tensor, keys: Any, chance: Tensor = chance, first: Tensor = first
            ) -> None:
                live = None
                if keys is None:
                    lived[layer] += chance.double().sum(1, keepdim=True)
                    all_lived[layer] += len(weights)
                else:
                    there = keys.cpu()[:, sources]
                    live = there[:, owner]
                    lived[layer] += chance.double() @ there.double()
                    all_lived[layer] += there.double().sum(0)
                part = weights[:, index.to(device)]
                for moment, group in zip(moments[layer], (first, ~first), strict=True):
                    if bool(group.any()):
                        moment.add(part[group.to(device)], None if live is None else live[group].to(device))
                part = part.double()  # a masked source has weight 0
                totals[layer] += part.sum(0).cpu()
                product = chance.to(device).double() @ part.flatten(1)
                sums[layer] += product.view(rows, len(chosen), weighted.heads).cpu()

            weighted.run(batch, seen, take)
        seen += len(whole)
    known.check(seen)
    out = []
    for number in weighted.layers:
        counts = lived.pop(number)[:, owner].unsqueeze(-1)
        in_all = all_lived[number][owner].unsqueeze(-1)
        others = in_all - counts
        total = totals[number]
        held = sums.pop(number)
        apart = (held / counts).sub_((total - held).div_(others)).abs_()
        # a permutation without a single sample on one side says nothing for the edge: counted against it
        apart = apart.nan_to_num_(nan=math.inf, posinf=math.inf)
        closeness = 4 * weighted.eps() * total.abs() / in_all.clamp(min=1)
        extreme = (apart[1:] >= apart[0] - closeness).sum(0)
        first_, second = moments[number]
        below = (first_.count + second.count - 2).clamp(min=1).unsqueeze(-1)
        pooled = ((first_.squares + second.squares) / below).sqrt()
        dead = ((first_.count == 0) | (second.count == 0)).unsqueeze(-1)
        p = ((1 + extreme).double() / rows).masked_fill(dead, torch.nan)
        n_a, n_b = (part.count.double().unsqueeze(-1).expand_as(p) for part in (first_, second))
        out.append(torch.stack([first_.means(), second.means(), pooled, p, n_a, n_b]).permute(2, 0, 1))
    return torch.cat(out).numpy()


def _frame(weighted: WeightedEdges, chosen: np.ndarray, found: np.ndarray) -> pd.DataFrame:
    import pandas as pd

    blocks = [(layer, head) for layer in weighted.layers for head in range(weighted.heads)]
    mean_a, mean_b, pooled, p, n_a, n_b = (found[:, column].reshape(-1) for column in range(6))
    difference = mean_a - mean_b
    columns = {
        **weighted.columns(chosen, blocks),
        "mean_a": mean_a,
        "mean_b": mean_b,
        "difference": difference,
        "cohens_d": np.divide(difference, pooled, out=np.full(len(p), np.nan), where=pooled > 0),
        "p_value": p,
        "q_value": false_discovery(p),
        "samples_a": n_a.astype(np.int32),
        "samples_b": n_b.astype(np.int32),
    }
    return pd.DataFrame(columns, copy=False)
