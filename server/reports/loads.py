"""Moving averages of counters, per minute, over 1, 5 and 15 minutes: `$SYS/broker/load/#`, as in mosquitto.

Each step takes in the rate since the one before. An average forgets by exp(-elapsed / its minutes), as a load
average of Unix does. It begins at 0, so it needs some of its minutes to come to a steady rate.

    600 messages in 10 s, then none      1min 552.67, 467.82, ...      5min 118.02, 114.15, ...

Source: mosquitto(8), "Broker status".
"""

from collections.abc import Mapping
from math import exp

MINUTES = (1, 5, 15)


class Loads:
    """Averages of the counters that each step is given. The same ones each time."""

    def __init__(self, now_s: float) -> None:
        """`now_s`: monotonic; the counters are 0."""
        self._at_s = now_s
        self._counts: Mapping[str, int] = {}
        self._averages: dict[tuple[str, int], float] = {}

    def step(self, now_s: float, counts: Mapping[str, int]) -> dict[str, str]:
        """The averages now: `messages/received/1min` -> "552.67"."""
        elapsed_min = (now_s - self._at_s) / 60
        if elapsed_min > 0:
            for name, count in counts.items():
                rate = (count - self._counts.get(name, 0)) / elapsed_min
                for minutes in MINUTES:
                    before = self._averages.get((name, minutes), 0.0)
                    self._averages[name, minutes] = rate + exp(-elapsed_min / minutes) * (before - rate)
            self._at_s, self._counts = now_s, counts
        return {
            f"{name}/{minutes}min": f"{self._averages.get((name, minutes), 0.0):.2f}"
            for name in counts
            for minutes in MINUTES
        }
