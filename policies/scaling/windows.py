"""What was seen over a time that ends now."""

from __future__ import annotations

from collections import deque


class Window:
    """Values of the last `length_s` seconds. A window of 0 s has the last value only."""

    def __init__(self, length_s: float) -> None:
        self.length_s = length_s
        self._values: deque[tuple[float, float]] = deque()

    def add(self, now_s: float, value: float) -> None:
        """Add a value, and drop those that are too old."""
        self._values.append((now_s, value))
        while now_s - self._values[0][0] >= self.length_s and len(self._values) > 1:
            self._values.popleft()

    @property
    def mean(self) -> float:
        return sum(value for _, value in self._values) / len(self._values)

    @property
    def greatest(self) -> float:
        return max(value for _, value in self._values)

    @property
    def least(self) -> float:
        return min(value for _, value in self._values)
