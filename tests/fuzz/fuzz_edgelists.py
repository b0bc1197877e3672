"""Coverage-guided fuzzing of ``read_edgelist`` with atheris, against the second opinion of ``edgelists.py``.

Run by hand, for as long as one likes (options are libFuzzer's)::

    pip install atheris
    python tests/fuzz/fuzz_edgelists.py -max_total_time=3600 [corpus folder]

A disagreement, an exception that is not ``PriorGraphError``, a run of over a minute or over 2 GiB ends it,
and leaves the input in a file ``crash-*``, ``timeout-*`` or ``oom-*``. ``make test-full`` runs it for a
while where atheris is installed.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path


def main(argv: list[str]) -> None:
    import atheris

    sys.path.insert(0, str(Path(__file__).parent))
    with atheris.instrument_imports(include=["pyg_kpnn.prior"]):
        import edgelists

        import pyg_kpnn.prior  # noqa: F401 - loaded here, to be instrumented

    folder = Path(tempfile.mkdtemp(prefix="pyg_kpnn-fuzz-"))

    def one(data: bytes) -> None:
        provider = atheris.FuzzedDataProvider(data)
        header = provider.ConsumeBool()
        zipped = provider.ConsumeIntInRange(0, 9) == 9
        options = dict(
            zipped=zipped,
            sep=provider.PickValueInList([",", "\t", ";", "|", " "]),
            header=header,
            encoding=provider.PickValueInList(edgelists.ENCODINGS),
            comment=provider.PickValueInList([None, None, "#", "//"]),
            sign=provider.PickValueInList([None, "sign" if header else 2]),
            weight=provider.PickValueInList([None, "weight" if header else 3]),
            on_duplicate=provider.PickValueInList(["error", "first"]),
        )
        content = provider.ConsumeBytes(provider.remaining_bytes())
        if zipped and provider.ConsumeBool():
            content = gzip.compress(content, 1)
        edgelists.check(edgelists.Case(content, **options), folder)

    # a first idea of what such files look like, as the guide knows only what it has seen
    corpus = folder / "corpus"
    corpus.mkdir()
    for seed in range(200):  # options are taken from the end: a header, and the first of every choice
        (corpus / str(seed)).write_bytes(edgelists.make_case(seed).data + bytes(8) + b"\1")
    atheris.Setup([*argv, "-timeout=60", "-rss_limit_mb=2048", str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
