"""Adding up by key."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfscope.merge.intervals import Ints


def summed(keys: list[npt.NDArray[np.int64]], values: Ints) -> tuple[list[npt.NDArray[np.int64]], Ints]:
    """Values added up by distinct combination of keys, which come back in ascending order."""
    if not len(values):
        return keys, values
    order = np.lexsort(keys[::-1])
    ordered = [key[order] for key in keys]
    new = np.ones(len(order), bool)
    new[1:] = np.any([key[1:] != key[:-1] for key in ordered], axis=0)
    first = np.flatnonzero(new)
    return [key[first] for key in ordered], np.add.reduceat(values[order], first)
