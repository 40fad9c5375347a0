"""How long something took, each time."""

from collections.abc import Iterable


class Latencies:
    """Milliseconds, in the order of their measuring."""

    def __init__(self, ms: Iterable[float] = ()) -> None:
        self.ms = list(ms)

    def at(self, share: float) -> float:
        """The latency that this share of all does not exceed; 0 of none."""
        return sorted(self.ms)[min(len(self.ms) - 1, int(share * len(self.ms)))] if self.ms else 0.0

    def __str__(self) -> str:
        if not self.ms:
            return "none"
        shares = ", ".join(f"p{share} {self.at(share / 100):.1f}" for share in (50, 90, 99))
        return f"{shares}, max {max(self.ms):.1f} ms of {len(self.ms):,}"
