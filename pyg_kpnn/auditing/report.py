"""What an audit found, as numbers, table, text and figure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.names import brief, listing, show

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["AuditReport", "NullResult"]

#: What the random graphs share with the prior.
_SHARED = {
    "degree": "in- and out-degrees",
    "sign": "in- and out-degrees of each sign",
    "component": "degrees and weak components",
    "labels": "shape, with the nodes permuted",
    "density": "number of edges",
}
#: Apart for every colour vision; the prior is black.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")


@dataclass(frozen=True)
class NullResult:
    """The prior against random graphs of one kind.

    Attributes
    ----------
    null : str
        What the graphs share with the prior, see :meth:`PriorGraph.rewire`.
    prior_score : float
        Score of the prior, higher is better.
    scores : tuple of float
        Scores of the n random graphs, in the order they were drawn.
    distinct : int
        Different wirings seen, the prior's among them.
    level : float
        Level of the test.
    """

    null: str
    prior_score: float
    scores: tuple[float, ...]
    distinct: int
    level: float

    @property
    def p_value(self) -> float:
        """(1 + random graphs that score at least as high) / (1 + n)."""
        return (1 + sum(score >= self.prior_score for score in self.scores)) / (1 + len(self.scores))

    @property
    def mean(self) -> float:
        """Mean of ``scores``."""
        return float(np.mean(self.scores))

    @property
    def deviation(self) -> float:
        """Standard deviation of ``scores`` (n - 1); NaN for one score."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else math.nan

    @property
    def effect(self) -> float:
        """(prior - mean) / deviation; NaN where all random graphs score the same."""
        return (self.prior_score - self.mean) / self.deviation if self.deviation > 0 else math.nan

    @property
    def smallest_p(self) -> float:
        """The smallest p-value within reach: one in 1 + n, or one in ``distinct`` if these are fewer."""
        return max(1 / (1 + len(self.scores)), 1 / self.distinct)

    @property
    def decided(self) -> bool:
        """Whether the test could have rejected at all; :attr:`reason` says why not."""
        return self.smallest_p <= self.level

    @property
    def reason(self) -> str | None:
        """Why the question stays open, or None."""
        if self.decided:
            return None
        short = f"the smallest p-value within reach, {self.smallest_p:.3g}, is above the level {self.level:g}"
        if self.distinct <= len(self.scores) and 1 / self.distinct > self.level:
            return f"{short}: {self.distinct} different wirings were seen, the prior's among them"
        return f"{short}: {len(self.scores)} draws are too few, take n={math.ceil(1 / self.level - 1e-9) - 1}"

    @property
    def helps(self) -> bool:
        """Whether the prior beats the random graphs at the level."""
        return self.decided and self.p_value <= self.level

    def to_dict(self) -> dict[str, Any]:
        """Attributes and derived numbers, JSON-ready; None for NaN."""
        out: dict[str, Any] = {"null": self.null, "prior_score": self.prior_score, "n": len(self.scores)}
        for name in ("mean", "deviation", "effect", "p_value", "smallest_p", "distinct", "level"):
            value = getattr(self, name)
            out[name] = None if math.isnan(value) else value
        out.update(decided=self.decided, reason=self.reason, helps=self.helps)
        return {**out, "scores": list(self.scores)}

    def __str__(self) -> str:
        spread = f" ± {self.deviation:.3f}" if len(self.scores) > 1 else ""
        shared = _SHARED[self.null]
        line = f"{self.null} ({shared}): {self.mean:.3f}{spread}, n={len(self.scores)}"
        if not self.decided:
            return f"{line}\n    not decided: {self.reason}"
        effect = "" if math.isnan(self.effect) else f", effect {self.effect:.2f}"
        verdict = "better than these graphs" if self.helps else "no better than these graphs"
        return f"{line}\n    p={self.p_value:.3g}{effect}: {verdict}"


@dataclass(frozen=True)
class AuditReport:
    """Result of :func:`pyg_kpnn.auditing.audit`.

    ``report["degree"]`` is the :class:`NullResult` of one null. ``p_value``, ``effect``, ``decided``,
    ``helps``, ``null_scores``, ``distinct`` and ``smallest_p`` are those of the first null.

    Attributes
    ----------
    nulls : tuple of NullResult
        In the order they were asked for.
    score : float
        Score of the prior.
    metric : str
        What the score is.
    graph : str
        Fingerprint of the prior.
    train_samples, test_samples : int
        Size of the split.
    seed : int
        Seed of the audit.
    stability : float or None
        Mean Jaccard index of the ``top_k`` edges over pairs of seeds; None if it was not measured.
    chance : float or None
        The Jaccard index that two random choices of ``top_k`` edges have on average, about.
    top_k : int
        Edges compared.
    top_edges : tuple of (source, target, count)
        Edges in the top of at least one seed and of how many, most first.
    """

    nulls: tuple[NullResult, ...]
    score: float
    metric: str
    graph: str
    train_samples: int
    test_samples: int
    seed: int
    stability: float | None = None
    chance: float | None = None
    top_k: int = 0
    top_edges: tuple[tuple[str, str, int], ...] = ()

    def __getitem__(self, null: str) -> NullResult:
        for result in self.nulls:
            if result.null == null:
                return result
        known = listing(show(result.null) for result in self.nulls)
        raise PriorGraphError(f"A null must be one the audit was made with. Got {show(null)}, not {known}.")

    @property
    def p_value(self) -> float:
        """Of the first null."""
        return self.nulls[0].p_value

    @property
    def effect(self) -> float:
        """Of the first null."""
        return self.nulls[0].effect

    @property
    def null_scores(self) -> tuple[float, ...]:
        """Of the first null."""
        return self.nulls[0].scores

    @property
    def distinct(self) -> int:
        """Of the first null."""
        return self.nulls[0].distinct

    @property
    def smallest_p(self) -> float:
        """Of the first null."""
        return self.nulls[0].smallest_p

    @property
    def decided(self) -> bool:
        """Of the first null."""
        return self.nulls[0].decided

    @property
    def helps(self) -> bool:
        """Of the first null."""
        return self.nulls[0].helps

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        names = ("score", "metric", "graph", "train_samples", "test_samples", "seed")
        out = {name: getattr(self, name) for name in (*names, "stability", "chance", "top_k")}
        out["top_edges"] = [list(edge) for edge in self.top_edges]
        return {**out, "nulls": [result.to_dict() for result in self.nulls]}

    def to_frame(self) -> pd.DataFrame:
        """One row a null: scores in short, p-value, effect, and whether it is decided."""
        import pandas as pd

        rows = [result.to_dict() for result in self.nulls]
        frame = pd.DataFrame(rows).drop(columns="scores")
        numbers = ["deviation", "effect"]
        return frame.astype(dict.fromkeys(numbers, float))

    def __str__(self) -> str:
        kept_back = f"{self.test_samples} samples kept back"
        lines = [f"prior {self.graph[:12]}: {self.metric} {self.score:.3f} on {kept_back}"]
        lines += [f"  {result}" for result in self.nulls]
        if self.stability is not None:
            agreement = f"Jaccard {self.stability:.2f} (by chance {self.chance:.2f})"
            often = listing(f"{brief(s)} -> {brief(t)} ({n})" for s, t, n in self.top_edges)
            lines += [f"  top {self.top_k} edges over seeds: {agreement}", f"    most often: {often}"]
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Histogram of the scores of the random graphs, with the prior's as a line.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; None for a new figure.

        Raises
        ------
        PriorGraphError
            If ``ax`` is something else.
        ImportError
            If matplotlib is not installed.
        """
        from pyg_kpnn.explain.subgraph_figure import check_axes

        check_axes(ax)
        if ax is None:
            from matplotlib.figure import Figure

            ax = Figure(figsize=(6.0, 3.4), layout="constrained").subplots()
        every = [self.score, *(score for result in self.nulls for score in result.scores)]
        low, high = min(every), max(every)
        room = (high - low) * 0.03 or 0.01
        bins = np.linspace(low - room, high + room, 31).tolist()
        for result, colour in zip(self.nulls, _COLOURS, strict=False):
            verdict = f"p = {result.p_value:.3g}" if result.decided else "not decided"
            label = f"{result.null}, {verdict}"
            several = len(self.nulls) > 1
            ax.hist(result.scores, bins, color=colour, alpha=0.25 if several else 0.6)
            if several:  # outlines stay apart where bars lie over one another
                ax.hist(result.scores, bins, color=colour, histtype="step", linewidth=1.5, label=label)
            else:
                ax.patches[0].set_label(label)
        ax.axvline(self.score, color="black", linewidth=2, label=f"prior, {self.score:.3f}")
        ax.set_xlabel(self.metric)
        ax.set_ylabel("random graphs")
        ax.locator_params(axis="y", integer=True)
        # above the axes, where it can hide no bar
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False, fontsize="small")
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        return ax
