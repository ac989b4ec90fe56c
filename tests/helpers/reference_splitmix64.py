"""Splitmix64 in Python's integers, to compare the random numbers of `augment.counter_rng` with."""

from __future__ import annotations

MASK = 2**64 - 1
INCREMENT = 0x9E3779B97F4A7C15


def reference_splitmix64(state: int) -> int:
    """The output for one state, as Steele, Lea and Flood (2014) define it."""
    state &= MASK
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
    return state ^ (state >> 31)
