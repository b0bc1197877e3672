"""Which inputs a model combines: exact mixed second derivatives, as a table by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..errors import PriorGraphError
from ..nn.checks import flag, positive_int
from .named_model import NamedModel
from .second_order import by_jets, by_rows, strongest

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["interactions"]


def interactions(
    model: Any,
    x: Tensor,
    *,
    pairs: Sequence[Any] | None = None,
    top_k: int | None = None,
    outputs: Sequence[Any] | None = None,
    per_sample: bool = False,
    key_padding_mask: Tensor | None = None,
) -> pd.DataFrame:
    r"""First and mixed second derivatives :math:`\partial^2 f_o / \partial x_a \partial x_b` by name.

    A second derivative that is not zero says that the effect of a on the output depends on b: the two
    are combined and not added up. Derivatives are exact, up to rounding; nothing is sampled or stepped.

    Parameters
    ----------
    model : callable
        Takes ``(B, n)`` or ``(B, n, c)`` values of the n units of its ``graph`` attribute, a
        :class:`~pyg_kpnn.PriorGraph` (of a bipartite graph the source side), and returns ``(B,)`` or
        ``(B, K)``. Samples must not influence each other. A :class:`~pyg_kpnn.PriorTransformer`, or any
        other model that can be differentiated twice.
    x : Tensor
        What the model takes, finite where not masked, at least one sample.
    pairs : sequence, optional
        Pairs of inputs by name, ``("a", "b")``, or ``("a", "a")`` for an unmixed second derivative; a
        name alone stands for the first derivative. A node of several units, or with several channels in
        ``x``, has several inputs: ``"a[0]"``, ``"a[1]"``, with both ``"a[unit,channel]"``.
    top_k : int, optional
        In place of ``pairs``: the ``top_k`` strongest combinations of two different inputs and an
        output, strongest first; fewer where fewer can be non-zero.
    outputs : sequence, optional
        Names of nodes where the model returns one value a unit, numbers of columns otherwise; None for
        all.
    per_sample : bool, default False
        False: the mean over samples in which the inputs were measured. True: a row a sample.
    key_padding_mask : Tensor, optional
        ``(B, n)`` bool, True = not measured: the model is called as ``model(x, mask)``, and a derivative
        in a value that was not measured is NaN.

    Returns
    -------
    pandas.DataFrame
        Columns ``input_a``, ``input_b`` (None in a first derivative), ``output`` (a node's name, a
        column's number, or 0 where there is one value a sample), ``value`` and ``hops``: how many
        layers of the graph it takes until the derivative can be non-zero, infinite where no number is
        enough, ``pandas.NA`` where no bound is known. ``per_sample`` puts ``sample`` in front. ``pairs``
        keep their order, outputs turn fastest, then samples.

    Raises
    ------
    PriorGraphError
        For an unknown name (with the nearest known one), ``x`` of another shape or not finite, both or
        neither of ``pairs`` and ``top_k``, dropout at work, or a model without ``graph``.

    Notes
    -----
    **Zeros.** A token of a PriorTransformer of L layers sees what is at most L edges upstream, so the
    mixed derivative of a node's output is exactly zero unless both inputs are. With ``readout`` "graph"
    or "class" it is exactly zero unless the two inputs have a common descendant within L edges: the
    affine head adds tokens up. Any other head there may combine what never met, so ``hops`` is NA
    then, as it is for other models and for layers that were replaced.

    **Strength.** ``top_k`` ranks by the absolute mean over samples, or with ``per_sample`` by the mean
    absolute value, which samples of opposite signs do not cancel in.

    **Cost.** Let K be the number of outputs and n of inputs. ``top_k`` computes the Hessian of one
    output after the other, a block of rows at a time: K forward and backward passes, and one further
    backward pass for each of the K n rows, less the inputs that meet no other within L layers. It keeps
    n² numbers. ``pairs`` do so for the rows they need, or take the jets of
    :func:`~pyg_kpnn.nn.transformer_jet.transformer_jet` where these are cheaper: few inputs, many
    outputs.

    Examples
    --------
    >>> import torch
    >>> from pyg_kpnn import PriorGraph
    >>> class Product:
    ...     graph = PriorGraph.from_edges([("a", "c"), ("b", "c")])
    ...     def __call__(self, x):
    ...         return x[:, 0] * x[:, 1] + x[:, 2]
    >>> x = torch.tensor([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]])
    >>> interactions(Product(), x, pairs=[("a", "b"), ("a", "c"), "a"])
      input_a input_b  output  value  hops
    0       a       b       0    1.0  <NA>
    1       a       c       0    0.0  <NA>
    2       a    None       0    4.0  <NA>
    >>> interactions(Product(), x, top_k=1)[["input_a", "input_b", "value"]].values.tolist()
    [['a', 'b', 1.0]]
    """
    flag("per_sample", per_sample)
    if (pairs is None) == (top_k is None):
        given = "neither" if pairs is None else "both"
        raise PriorGraphError(f"Either pairs or top_k must be given, got {given}.")
    named = NamedModel(model, x, key_padding_mask)
    chosen = named.chosen_outputs(outputs)
    if pairs is not None:
        wanted = [named.entry(entry) for entry in _entries(pairs)]
        a = np.repeat([first for first, _ in wanted], len(chosen))
        b = np.repeat([second for _, second in wanted], len(chosen))
        out = np.tile(chosen, len(wanted))
        values = None
    else:
        a, b, out, values = strongest(named, chosen, positive_int("top_k", top_k), absolute=per_sample)
    hops = named.hops(a, b, out)
    if values is None or per_sample:
        some = ~(hops > named.num_layers) if named.num_layers is not None else np.ones(len(a), dtype=bool)
        values = np.zeros((len(a), len(x) if per_sample else 1))
        found = by_jets(named, a[some], b[some], out[some], per_sample)
        values[some] = by_rows(named, a[some], b[some], out[some], per_sample) if found is None else found
        if named.mask is not None:
            values = _where_measured(named, a, b, values, per_sample)
    return _frame(named, (a, b, out), values, hops, per_sample)


def _entries(pairs: Any) -> list[Any]:
    if isinstance(pairs, (str, bytes)) or not hasattr(pairs, "__iter__"):
        raise PriorGraphError(f"pairs must be a sequence of pairs of names, got {pairs!r}.")
    entries = list(pairs)
    if not entries:
        raise PriorGraphError("pairs must hold at least one pair, got none.")
    return entries


def _where_measured(
    named: NamedModel, a: np.ndarray, b: np.ndarray, values: np.ndarray, per_sample: bool
) -> np.ndarray:
    """NaN in place of the 0 of samples in which an input was not measured, or the mean over the others."""
    second = np.where(b < 0, a, b)
    if per_sample:
        there = named.measured
        return np.where((there[:, a] & there[:, second]).T, values, np.nan)
    inputs, place = np.unique(np.concatenate([a, second]), return_inverse=True)
    one, other = place.reshape(2, -1)
    share = named.measured_together(inputs)[one, other]
    return values / np.where(share > 0, share, np.nan)[:, None]


def _frame(
    named: NamedModel,
    entries: tuple[np.ndarray, np.ndarray, np.ndarray],
    values: np.ndarray,
    hops: np.ndarray,
    per_sample: bool,
) -> pd.DataFrame:
    import pandas as pd

    a, b, out = entries
    samples = values.shape[1]
    bounds = pd.array([pd.NA if np.isnan(bound) else bound for bound in hops.tolist()], dtype="Float64")
    columns = {
        "input_a": pd.Series([named.inputs[i] for i in a], dtype=object),
        "input_b": pd.Series([None if i < 0 else named.inputs[i] for i in b], dtype=object),
        "output": pd.Series([named.outputs[o] for o in out], dtype=object if named.node_outputs else "int64"),
        "hops": pd.Series(bounds),
    }
    frame = pd.DataFrame(columns)
    if per_sample:
        frame = frame.loc[frame.index.repeat(samples)].reset_index(drop=True)
        frame.insert(0, "sample", np.tile(np.arange(samples), len(a)))
    frame.insert(frame.columns.get_loc("hops"), "value", values.reshape(-1))
    return frame
