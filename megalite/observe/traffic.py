"""What one group sent: calls and bytes per collective, counted where the collective is called.

Counted at the call, not on the wire: gloo implements a reduce-scatter as an all-reduce and a slice.
"""

from collections import Counter


class Traffic:
    """Calls and payload bytes of each collective. The payload is the full tensor: of an all-gather its result, of a
    reduce-scatter its input."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, collective: str, nbytes: int) -> None:
        self.calls[collective] += 1
        self.bytes[collective] += nbytes
