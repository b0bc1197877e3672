"""Which column may be meant by a node that has none: names compared without what people write differently.

Every level is a dictionary of normalised names, so the work grows with the number of names and not with
its square.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pyg_kpnn.prior.names import _GUESS_CHARACTERS, _INVISIBLE

__all__ = ["SURE", "Hint", "propose"]

#: Reasons that leave the name itself as it is; a spelling is only a guess.
SURE = ("blanks", "case", "version", "affix", "punctuation")
_ACCESSION = re.compile(  # Ensembl and RefSeq with their version, UniProt with its isoform
    r"(ens[a-z]*\d{8,}|[nx][mrpc]_\d+)\.\d+|([opq]\d[a-z0-9]{3}\d|[a-nr-z]\d(?:[a-z][a-z0-9]{2}\d){1,2})-\d+"
)
_SUFFIX = re.compile(r"(?:[_\-.: ](?:gene|protein|transcript|mrna|rna|human|mouse))+$")
_PREFIX = re.compile(
    r"^(?:(?:gene|protein|transcript|rna|symbol|uniprot(?:kb)?|ensembl|hsa|mmu|human|mouse|hg19|hg38|mm10|mm39|"
    r"grch3[78]|grcm3[89])[_\-.: ])+"
)
_MARK = r"[\s._\-/:]+"
_BETWEEN_DIGITS = re.compile(rf"(?<=\d){_MARK}(?=\d)")
_ELSEWHERE = re.compile(rf"(?<!\d){_MARK}|{_MARK}(?!\d)")
_SPELLED = range(7, 65)  # among shorter symbols, one letter mostly makes another gene
_MOST = 8  # candidates for one key, so that no crowd of like names makes the work quadratic


class Hint(NamedTuple):
    """What a node without a column may be called in the data.

    Attributes
    ----------
    node : str
        The node that has no column.
    features : tuple of str
        Columns that may be meant, in the order of the data; more than one is ambiguous.
    reason : str
        ``"blanks"`` (blanks around, invisible characters, Unicode form), ``"case"``, ``"version"``,
        ``"affix"`` (a word such as ``_gene``), ``"punctuation"`` or ``"spelling"`` (one letter).
    """

    node: str
    features: tuple[str, ...]
    reason: str


def _look(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", _INVISIBLE.sub("", name)).split())


def _fold(name: str) -> str:
    return _look(name).casefold()


def _unversioned(name: str) -> str:
    folded = _fold(name)
    found = _ACCESSION.fullmatch(folded)
    return folded if found is None else found[1] or found[2]


def _bare(name: str) -> str:
    name = _unversioned(name)
    return _SUFFIX.sub("", _PREFIX.sub("", name)) or name


def _plain(name: str) -> str:
    """Without punctuation; between digits it stays, as ``NKX2-1`` is not ``NKX21``."""
    return _ELSEWHERE.sub("", _BETWEEN_DIGITS.sub("-", _bare(name)))


_LEVELS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("blanks", _look),
    ("case", _fold),
    ("version", _unversioned),
    ("affix", _bare),
    ("punctuation", _plain),
)


def _table(names: Sequence[str], key: Callable[[str], str | None]) -> Mapping[str, list[str]]:
    table: dict[str, list[str]] = defaultdict(list)
    for name in names:
        text = key(name)
        if text and len(table[text]) < _MOST:
            table[text].append(name)
    return table


def _stem(name: str) -> str | None:
    """What is before a version such as ``.1``; None without one."""
    stem, _, version = _fold(name).rpartition(".")
    numbered = version.isdigit() and len(version) <= 3 and any(map(str.isalpha, stem))
    return stem if numbered else None


def _one_sided(nodes: Sequence[str], features: Sequence[str]) -> dict[str, list[str]]:
    """A version on one side only: RP11-34P13.7 and RP11-34P13.3 are two genes."""
    folded, stems = _table(features, _fold), _table(features, _stem)
    return {name: [*folded.get(_stem(name) or "", ()), *stems.get(_fold(name), ())] for name in nodes}


def _cuts(name: str) -> Iterator[str]:
    """The name and what is left of it without any one letter; digits stay, as they tell families apart."""
    yield name
    for place, letter in enumerate(name):
        if not letter.isdigit():
            yield name[:place] + name[place + 1 :]


def _one_slip(one: str, other: str) -> bool:
    """One letter more, less or changed, or two neighbours swapped; sisters differ in the last one."""
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    end = 0
    while end < min(len(one), len(other)) - start and one[-1 - end] == other[-1 - end]:
        end += 1
    left, right = one[start : len(one) - end], other[start : len(other) - end]
    if len(left) == len(right) == 1:
        return end > 0
    return len(left) + len(right) == 1 or (len(left) == 2 and left == right[::-1])


def _spellings(nodes: Sequence[str], features: Sequence[str]) -> dict[str, list[str]]:
    # Most cuts belong to one name: a list for each would keep the garbage collector busy.
    first: dict[str, str] = {}
    more: dict[str, list[str]] = defaultdict(list)
    plain = {name: _plain(name) for name in (*nodes, *features)}
    for feature in features:
        if len(plain[feature]) in _SPELLED:
            for cut in dict.fromkeys(_cuts(plain[feature])):
                if first.setdefault(cut, feature) is not feature and len(more[cut]) < _MOST:
                    more[cut].append(feature)
    found: dict[str, list[str]] = {}
    for node in nodes:
        if len(plain[node]) in _SPELLED:
            cuts = [cut for cut in _cuts(plain[node]) if cut in first]
            near = dict.fromkeys(other for cut in cuts for other in (first[cut], *more.get(cut, ())))
            found[node] = [other for other in near if _one_slip(plain[node], plain[other])]
    return found


def propose(nodes: Sequence[str], features: Sequence[str]) -> tuple[Hint, ...]:
    """Hints for nodes without a column among columns without a node, in the order of ``nodes``.

    The first reason that finds a column is the one given.

    Examples
    --------
    >>> propose(["TP53", "Pu1"], ["Pu.1", "tp53"])
    (Hint(node='TP53', features=('tp53',), reason='case'),
     Hint(node='Pu1', features=('Pu.1',), reason='punctuation'))
    """
    nodes, features = (
        [name for name in side if len(name) <= _GUESS_CHARACTERS] for side in (nodes, features)
    )
    order = {name: place for place, name in enumerate(features)}
    found: dict[str, Hint] = {}

    def note(reason: str, candidates: Mapping[str, Sequence[str]]) -> None:
        for node, near in candidates.items():
            if near:
                found[node] = Hint(node, tuple(sorted(set(near), key=order.__getitem__)), reason)

    for reason, key in _LEVELS:
        left = [name for name in nodes if name not in found]
        table = _table(features, key)
        note(reason, {name: table.get(key(name), ()) for name in left})
        if reason == "version":
            note(reason, _one_sided([name for name in left if name not in found], features))
    taken = {feature for hint in found.values() for feature in hint.features}
    left = [name for name in nodes if name not in found]
    note("spelling", _spellings(left, [name for name in features if name not in taken]))
    return tuple(found[name] for name in nodes if name in found)
