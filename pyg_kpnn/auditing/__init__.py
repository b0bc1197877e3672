"""Does the prior help? A model on the given graph against the same model on random ones."""

from pyg_kpnn.auditing.fitting import fit_adamw
from pyg_kpnn.auditing.report import AuditReport, NullResult
from pyg_kpnn.auditing.run import audit

__all__ = ["AuditReport", "NullResult", "audit", "fit_adamw"]
