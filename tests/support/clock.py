"""The clocks of tests, none of which runs by itself.

`HandClock`: wall and monotonic time are two things, so that the wall clock can jump. `RigClock`: one number
is both; time only passes. Of a server as an app the tests take `server.engine.clock.SimulatedClock`.
"""


class HandClock:
    """Wall time is set, monotonic time elapses, each by hand."""

    is_simulated = False

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.mono_s = 1_000.0

    def wall_ms(self) -> int:
        return self.now_ms

    def until(self, at_ms: int) -> float:
        return (at_ms - self.now_ms) / 1000

    def mono(self) -> float:
        return self.mono_s

    def step(self, by_ms: int) -> None:
        """The wall clock jumps by `by_ms`; monotonic time only elapses, a minute of it at most."""
        self.now_ms = max(1, self.now_ms + by_ms)
        self.mono_s += max(0.001, min(by_ms, 60_000) / 1000)


class RigClock:
    """Wall and monotonic time pass together."""

    is_simulated = True

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def until(self, at_ms: int) -> float:
        return max(0.0, (at_ms - self.now_ms) / 1000)

    def mono(self) -> float:
        return self.now_ms / 1000
