"""splitmix64: random bits by number, so that a draw depends on what it is for and on nothing else."""

from __future__ import annotations

import numpy as np

G = np.uint64(0x9E3779B97F4A7C15)  # its increment


def mix(z: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser of a uint64 array, in place; modulo 2**64."""
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(z, np.uint64(27), out=shifted)
    z ^= shifted
    z *= np.uint64(0x94D049BB133111EB)
    np.right_shift(z, np.uint64(31), out=shifted)
    z ^= shifted
    return z
