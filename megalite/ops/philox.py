"""Philox4x32-10: a random number as a function of a key and a counter (Salmon et al., SC 2011).

Dropout masks come from here. There is no state to save or to synchronise: any rank computes the bits of any element.
"""

import hashlib
import struct

from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def derive_key(*facts: int | str) -> tuple[int, int]:
    """Two 32-bit key words that depend on every fact."""
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=8).digest()
    low, high = struct.unpack("<2I", digest)
    return low, high


def philox(key: tuple[int, int], counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four words of 32 random bits for each counter.

    counter: four int64 tensors that broadcast together, each below 2**32. Returns four int64 tensors below 2**32.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # 64-bit products wrap to the right bits in int64; masks make of the shifted sign what unsigned would hold.
        p0, p1 = c0 * _MULTIPLIER[0], c2 * _MULTIPLIER[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3
