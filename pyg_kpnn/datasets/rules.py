"""Boolean rules of a gene network: parse, evaluate, read signed edges, find attractors.

A rule is text such as ``"(Cebpa or Pu1) and not (Gata1 or Gata2)"``. It is parsed with :mod:`ast`
and never evaluated as Python: only names, ``and``, ``or``, ``not``, ``True`` and ``False`` pass.
"""

from __future__ import annotations

import ast
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.names import show

__all__ = ["BooleanNetwork"]

Array = np.ndarray[Any, Any]
Attractor = tuple[tuple[bool, ...], ...]

_MAX_STATES = 1 << 18
_MAX_DEPTH = 100  # far beyond published rules, and within what Python's own stack can follow


class BooleanNetwork:
    r"""Genes, each with one Boolean rule, and the continuous relaxation of those rules.

    On activities :math:`p \in [0, 1]` a rule is read with the product logic

    .. math::
        \text{not } p = 1 - p, \qquad p \text{ and } q = p q, \qquad p \text{ or } q = 1 - (1 - p)(1 - q),

    which equals the Boolean rule wherever every activity is 0 or 1.

    Parameters
    ----------
    rules : mapping of str to str
        Gene name to rule text. Every name a rule uses must itself be a gene with a rule.
    genes : sequence of str, optional
        Order of the genes, the row order of every state array. Default: alphabetical.

    Attributes
    ----------
    genes : tuple of str
        The ``n`` genes.
    rules : dict of str to str
        The rule text of each gene, in the order of ``genes``.

    Raises
    ------
    PriorGraphError
        For an empty rule set, a rule that does not parse or uses anything but names, ``and``,
        ``or``, ``not``, ``True`` and ``False``, one nested more than 100 deep, a regulator without a
        rule, or an order that is not a permutation of the genes.

    Examples
    --------
    >>> toggle = BooleanNetwork({"A": "not B", "B": "not A"})
    >>> toggle.edges()
    (('A', 'B', -1), ('B', 'A', -1))
    >>> toggle.update(np.array([[True], [True]])).tolist()
    [[False], [False]]
    >>> toggle.relax(np.array([[0.25], [0.0]])).tolist()
    [[1.0], [0.75]]
    """

    def __init__(self, rules: Mapping[str, str], genes: Sequence[str] | None = None) -> None:
        if not rules:
            raise PriorGraphError("a Boolean network needs at least one gene with a rule, got none")
        self.genes = tuple(sorted(rules)) if genes is None else tuple(genes)
        if sorted(self.genes) != sorted(rules):
            odd = sorted(set(self.genes) - set(rules)) + sorted(set(rules) - set(self.genes))
            odd += sorted(gene for gene in rules if self.genes.count(gene) > 1)
            raise PriorGraphError(
                f"genes must list every gene with a rule exactly once, got {len(self.genes)} names for "
                f"{len(rules)} rules; look at {odd[0]!r}"
            )
        self.rules = {gene: rules[gene] for gene in self.genes}
        self._trees = {gene: _parse(gene, text, rules) for gene, text in self.rules.items()}
        index = {gene: row for row, gene in enumerate(self.genes)}
        self._functions = [_compile(self._trees[gene], index) for gene in self.genes]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.genes)} genes, {len(self.edges())} edges)"

    def relax(self, activity: Array) -> Array:
        """The relaxed rule of every gene.

        Parameters
        ----------
        activity : (n, ...) float array
            Activity of each gene, 0 to 1.

        Returns
        -------
        (n, ...) float array
            What each rule asks for, 0 to 1.
        """
        return np.stack([function(activity) for function in self._functions])

    def update(self, state: Array) -> Array:
        """The Boolean rule of every gene: ``(n, ...)`` bool in, ``(n, ...)`` bool out."""
        return self.relax(np.asarray(state, dtype=np.float64)) > 0.5

    def edges(self) -> tuple[tuple[str, str, int], ...]:
        """Signed edges that the rules imply.

        Returns
        -------
        tuple of (source, target, sign)
            One edge a regulator that the text of a target's rule names, sorted by name. The sign
            is +1 under an even number of ``not``, -1 under an odd number, 0 if the rule uses the
            regulator both ways.
        """
        found: dict[tuple[str, str], set[int]] = {}
        for target, tree in self._trees.items():
            for source, sign in _literals(tree, 1):
                found.setdefault((source, target), set()).add(sign)
        return tuple((*edge, next(iter(s)) if len(s) == 1 else 0) for edge, s in sorted(found.items()))

    def state(self, on: Sequence[str]) -> Array:
        """The ``(n,)`` bool state with exactly these genes on."""
        for gene in on:
            if gene not in self.rules:
                raise PriorGraphError(
                    f"a state may only switch on genes of the network, got {gene!r}, not one of "
                    f"{', '.join(self.genes)}"
                )
        return np.array([gene in set(on) for gene in self.genes])

    def attractors(self, starts: Array | None = None) -> tuple[Attractor, ...]:
        """Every attractor of asynchronous updating (one gene at a time, any order), exhaustively.

        An attractor is a set of states that no update leaves: the ends of the graph of all states
        reachable from ``starts``. A fixed point is an attractor of one state.

        Parameters
        ----------
        starts : (n, k) bool array, optional
            States to start from. Default: all ``2 ** n`` states.

        Returns
        -------
        tuple of attractors
            Each a sorted tuple of states, each state a tuple of ``n`` bools; sorted.

        Raises
        ------
        PriorGraphError
            If more than 262,144 states would have to be looked at.

        Examples
        --------
        >>> BooleanNetwork({"A": "not B", "B": "not A"}).attractors()
        (((False, True),), ((True, False),))
        >>> len(BooleanNetwork({"A": "not A"}).attractors()[0])  # one attractor of two states
        2
        """
        import networkx as nx

        size = len(self.genes)
        bits = 1 << np.arange(size, dtype=np.int64)
        if starts is None:
            _check_reach(2**size if size < 63 else _MAX_STATES + 1)
            frontier = np.arange(2**size, dtype=np.int64)
        else:
            frontier = np.unique(bits @ np.asarray(starts, dtype=np.int64).reshape(size, -1))
        graph = nx.DiGraph()
        seen = set(frontier.tolist())
        while frontier.size:
            graph.add_nodes_from(frontier.tolist())
            states = (frontier[None, :] & bits[:, None]) != 0
            gene, cell = np.nonzero(self.update(states) != states)
            following = frontier[cell] ^ bits[gene]
            graph.add_edges_from(zip(frontier[cell].tolist(), following.tolist(), strict=True))
            fresh = set(following.tolist()) - seen
            seen |= fresh
            _check_reach(len(seen))
            frontier = np.array(sorted(fresh), dtype=np.int64)
        return tuple(
            sorted(
                tuple(sorted(tuple(bool(code >> i & 1) for i in range(size)) for code in end))
                for end in nx.attracting_components(graph)
            )
        )


def _check_reach(count: int) -> None:
    if count > _MAX_STATES:
        raise PriorGraphError(
            f"an exhaustive attractor search looks at no more than {_MAX_STATES:,} states, this one needs "
            "more; pass fewer starts"
        )


def _parse(gene: str, text: str, rules: Mapping[str, str]) -> ast.expr:
    """The expression tree of one rule, checked node by node."""
    text = str(text).strip()
    # Python would leave out what follows a '#', and read two names that NFKC makes equal as one
    if "#" in text or unicodedata.normalize("NFKC", text) != text:
        raise PriorGraphError(
            f"a rule must be plain Unicode text (NFKC) without '#'; the rule of {gene!r} is {show(text)}"
        )
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise PriorGraphError(
            f"a rule must be a Boolean expression of gene names with and, or, not; the rule of {gene!r} "
            f"is {show(text)} and does not parse"
        ) from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if node.id not in rules:
                raise PriorGraphError(
                    f"every regulator needs a rule of its own; the rule of {gene!r} names {show(node.id)}, "
                    "which has none"
                )
        elif not (
            isinstance(node, ast.BoolOp | ast.And | ast.Or | ast.Not | ast.Load)
            or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
            or (isinstance(node, ast.Constant) and isinstance(node.value, bool))
        ):
            raise PriorGraphError(
                f"a rule may use gene names, and, or, not, True and False only; the rule of {gene!r} is "
                f"{show(text)}, which uses {type(node).__name__}"
            )
    level, depth = [tree], 0
    while level:
        level = [
            child for node in level for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)
        ]
        depth += 1
        if depth > _MAX_DEPTH:
            raise PriorGraphError(
                f"a rule may be nested at most {_MAX_DEPTH} deep; the rule of {gene!r} is {show(text)}"
            )
    return tree


def _compile(tree: ast.expr, index: Mapping[str, int]) -> Callable[[Array], Array]:
    """The product-logic function ``(n, ...) -> (...)`` of a checked tree."""
    if isinstance(tree, ast.Name):
        row = index[tree.id]
        return lambda activity: activity[row]
    if isinstance(tree, ast.Constant):
        value = float(bool(tree.value))
        return lambda activity: np.full_like(activity[0], value)
    if isinstance(tree, ast.UnaryOp):
        inner = _compile(tree.operand, index)
        return lambda activity: 1.0 - inner(activity)
    assert isinstance(tree, ast.BoolOp)
    parts = [_compile(value, index) for value in tree.values]
    if isinstance(tree.op, ast.And):
        return lambda activity: np.prod([part(activity) for part in parts], axis=0)
    return lambda activity: 1.0 - np.prod([1.0 - part(activity) for part in parts], axis=0)


def _literals(tree: ast.expr, sign: int) -> Iterator[tuple[str, int]]:
    """Every name in the tree with the sign it is used with."""
    if isinstance(tree, ast.Name):
        yield tree.id, sign
    elif isinstance(tree, ast.UnaryOp):
        yield from _literals(tree.operand, -sign)
    elif isinstance(tree, ast.BoolOp):
        for value in tree.values:
            yield from _literals(value, sign)
