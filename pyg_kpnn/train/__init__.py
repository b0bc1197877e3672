"""Training with Lightning: a module, a data module, and ``fit`` that joins them (extra ``train``)."""

try:
    import lightning as _lightning  # noqa: F401
except ImportError as error:
    raise ImportError('pyg_kpnn.train needs lightning: pip install "pyg_kpnn[train]".') from error

from .data import PriorDataModule
from .fitting import fit
from .module import PriorTransformerModule, load

__all__ = ["PriorDataModule", "PriorTransformerModule", "fit", "load"]
