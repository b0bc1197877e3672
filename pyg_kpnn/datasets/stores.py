"""Where the numbers of a table lie until a batch asks for some rows: in memory, sparse, or in a file."""

from __future__ import annotations

import itertools
import os
from typing import Any, Protocol

import numpy as np

from pyg_kpnn.errors import PriorGraphError
from pyg_kpnn.prior.names import show

__all__ = ["BackedStore", "DenseStore", "SparseStore", "Store", "store_of"]


class Store(Protocol):
    """Rows of a table, restricted to the columns chosen when it was made."""

    def rows(self, places: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        """Rows (k, columns) as a new dense array."""
        ...


class DenseStore:
    """An array in memory; holds a copy of the columns that are needed."""

    def __init__(self, values: Any, columns: np.ndarray) -> None:
        self._values = np.ascontiguousarray(np.asarray(values)[:, columns])

    def rows(self, places: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        with np.errstate(over="ignore"):  # what overflows is infinite, and refused with its names
            return self._values[places].astype(dtype)


class SparseStore:
    """A scipy matrix or array in CSR form, with the columns that are needed; what is not stored is 0."""

    def __init__(self, values: Any, columns: np.ndarray) -> None:
        self._values = values.tocsr()[:, columns]

    def rows(self, places: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.asarray(self._values[places].astype(dtype).toarray())


class BackedStore:
    """A matrix in an h5ad file, of which only the rows asked for are read.

    The file is opened anew in every process, as an open one is of no use to another.
    """

    def __init__(self, path: str, key: str, columns: np.ndarray, width: int) -> None:
        self._path, self._key, self._columns, self._width = path, key, columns, width
        self._forget()
        self._open()  # here, where the caller can see what is wrong with it

    def _forget(self) -> None:
        self._owner: int | None = None
        self._file: Any = None
        self._starts: np.ndarray | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owner": None, "_file": None, "_starts": None}

    def _open(self) -> Any:
        if self._owner != os.getpid():
            import h5py  # type: ignore[import-untyped]

            try:
                self._file = h5py.File(self._path, "r")
            except OSError as error:
                raise PriorGraphError(
                    f"The file of a backed AnnData must be readable. Got {error} for {show(self._path)}. "
                    "Open it with backed='r', or pass adata.to_memory()."
                ) from error
            self._owner = os.getpid()
            if self._key not in self._file:
                self._key = self._key.replace("/", ".", 1)  # files before anndata 0.7 call it raw.X
            matrix = self._file[self._key]
            if not isinstance(matrix, h5py.Dataset):
                kind = matrix.attrs.get("encoding-type", matrix.attrs.get("h5sparse_format", "csr"))
                if "csr" not in str(kind):
                    raise PriorGraphError(
                        "A backed matrix must be dense or in CSR form, to be read by rows. Got "
                        f"{show(str(kind))}. Pass adata.to_memory()."
                    )
                self._starts = matrix["indptr"][:]
        return self._file[self._key]

    def rows(self, places: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        matrix = self._open()
        wanted, back = np.unique(places, return_inverse=True)  # h5py reads ascending rows, each once
        out = np.zeros((len(wanted), len(self._columns)), dtype=dtype)
        with np.errstate(over="ignore"):
            for first, last in _runs(wanted):
                start, stop = int(wanted[first]), int(wanted[last - 1]) + 1
                if self._starts is None:
                    out[first:last] = matrix[start:stop][:, self._columns]
                else:
                    out[first:last] = self._sparse_rows(matrix, start, stop).toarray()
        return out[back.reshape(-1)]

    def _sparse_rows(self, matrix: Any, start: int, stop: int) -> Any:
        from scipy.sparse import csr_matrix  # type: ignore[import-untyped]

        assert self._starts is not None
        at = self._starts[start : stop + 1]
        low, high = int(at[0]), int(at[-1])
        parts = (matrix["data"][low:high], matrix["indices"][low:high], at - low)
        return csr_matrix(parts, shape=(stop - start, self._width))[:, self._columns]


def _runs(places: np.ndarray) -> list[tuple[int, int]]:
    """Bounds of the runs of consecutive numbers."""
    cuts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
    return [(a, b) for a, b in itertools.pairwise(cuts) if b > a]


def store_of(values: Any, columns: np.ndarray, what: str) -> Store:
    """The store for an array or a scipy matrix in memory.

    Raises
    ------
    PriorGraphError
        For anything else, and for values that are no real numbers.
    """
    if not (hasattr(values, "tocsr") or isinstance(values, np.ndarray)):
        raise PriorGraphError(
            f"{what} must be a NumPy array or a scipy.sparse matrix. Got {type(values).__name__}. "
            "Pass adata.to_memory()."
        )
    if values.dtype.kind not in "fiub":
        raise PriorGraphError(f"{what} must hold real numbers. Got {values.dtype}. Convert it to floats.")
    return SparseStore(values, columns) if hasattr(values, "tocsr") else DenseStore(values, columns)
