"""Counter-based random numbers: a function of (seed, uid, copy, position), whatever the chunks and processes.

    key(uid)         = blake2b("<seed>:<uid>", 8 bytes, little endian)
    stream(uid, c)   = splitmix64(key + c * G)                  c = 1, 2, ... copies
    draw(uid, c, w)  = splitmix64(stream + w * G)

with splitmix64's finaliser and increment G, all modulo 2**64.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa

INCREMENT = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's increment


def splitmix64(z: np.ndarray) -> np.ndarray:
    """Apply splitmix64's finaliser to a uint64 array in place, modulo 2**64."""
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(z, np.uint64(27), out=shifted)
    z ^= shifted
    z *= np.uint64(0x94D049BB133111EB)
    np.right_shift(z, np.uint64(31), out=shifted)
    z ^= shifted
    return z


def streams_of(seed: int, uids: pa.StringArray, copies: int) -> np.ndarray:
    """The (n * copies,) uint64 streams of all copies, keeping each row's copies together."""
    digests = (hashlib.blake2b(f"{seed}:{uid}".encode(), digest_size=8).digest() for uid in uids.to_pylist())
    keys = np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)
    return splitmix64((keys[:, None] + INCREMENT * np.arange(1, copies + 1, dtype=np.uint64)).ravel())


def threshold(p: float) -> np.uint64:
    """The value that a draw falls below with probability p, 0 <= p < 1."""
    return np.uint64(int(p * 2**64))


def integers_below(draws: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Turn uint64 draws into integers in [0, limit); the limits are int64, above 0 and below 2**31."""
    return ((draws >> np.uint64(32)) * limits.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def draw_number(seed: int, *names: object) -> int:
    """Derive an integer below 2**64 from a seed and names: blake2b("<seed>:<name>:<name>...", 8 bytes)."""
    text = ":".join(str(name) for name in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
