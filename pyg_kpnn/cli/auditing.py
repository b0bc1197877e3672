"""``pyg-kpnn audit``: the prior of a table of classes against random graphs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..auditing import AuditReport, audit, fit_adamw
from ..datasets import AlignedDataset
from ..prior.rewire import whole
from .answers import save_figure
from .files import write_json

__all__ = ["audit_samples", "write_audit"]


def audit_samples(
    samples: AlignedDataset, null: str, n: int, steps: int, level: float, seed: int, progress: bool
) -> AuditReport:
    """Audit the graph of ``samples``, which is the prior without what the table lacks."""
    return audit(
        None,
        samples.graph,
        samples,
        n=n,
        null=[name.strip() for name in null.split(",")],
        fit=partial(fit_adamw, steps=whole("steps", steps, 1)),
        seed=seed,
        level=level,
        progress=progress,
    )


def write_audit(report: AuditReport, folder: Path) -> None:
    """``run.json`` with everything, ``nulls.csv`` with a row a null, ``audit.png``."""
    write_json(report.to_dict(), folder / "run.json")
    report.to_frame().to_csv(folder / "nulls.csv", index=False)
    save_figure(report.plot, folder / "audit.png")
