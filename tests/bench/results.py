"""What a benchmark finds, and how it is told: one JSON line each, at the end a table for people.

    {"name":"drain","value":61234.0,"unit":"msg/s","runs":[...],"baseline":"bare sender","ratio":0.31,...}

`value` is the median of the runs, `ratio` that by the median of the baseline, which was measured in the same
run on the same machine: absolute figures differ from machine to machine, and by a factor of two on one that
is shared; ratios do not so much. For the same reason the table ends with how long an empty turn of a Python
loop takes. `target` is what the project wants on an otherwise idle machine.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything; counts of messages unless said otherwise."""

    runs: int
    batch: int
    single: int
    late_per_s: int
    late_s: int
    lead_s: float
    """How far ahead of due the scheduling of lateness and drain is to be over."""
    drain: int
    webhook: int
    replay: int
    pending: tuple[int, ...]
    plain: int
    pull: int
    fan_out: int
    slice: int
    spark: tuple[int, ...]
    """Rows of the slice that the Spark jobs work on."""
    split_rows: int
    """Rows of the slice that is split under load."""
    log: int
    """Appends."""


_SIZES: dict[str, tuple[Any, Any, Any]] = {
    "runs": (3, 3, 1),
    "batch": (200_000, 50_000, 3_000),
    "single": (10_000, 10_000, 100),
    "late_per_s": (1_000, 1_000, 200),
    "late_s": (20, 2, 1),
    "lead_s": (5.0, 0.7, 3.0),
    "drain": (200_000, 40_000, 2_000),
    "webhook": (20_000, 3_000, 300),
    "replay": (100_000, 20_000, 2_000),
    "pending": ((1_000_000, 10_000_000), (200_000,), (2_000, 4_000)),
    "plain": (200_000, 30_000, 1_000),
    "pull": (100_000, 10_000, 1_000),
    "fan_out": (50_000, 10_000, 500),
    "slice": (1_000_000, 60_000, 15_000),
    "spark": ((1_000_000, 10_000_000), (1_000_000,), (6_000,)),
    "split_rows": (1_000_000, 300_000, 3_000),
    "log": (400, 200, 10),
}
"""Of a full run, of a quick one, of one that only shows that it works."""
FULL, QUICK, TINY = (
    Sizes(**dict(zip(_SIZES, column, strict=True))) for column in zip(*_SIZES.values(), strict=True)
)


@dataclass(slots=True)
class Seen:
    """What a run comes to know beside its figures."""

    build: str = "pure"
    missing: set[str] = field(default_factory=set)
    """Peers that are not installed."""


@dataclass(frozen=True, slots=True)
class Env:
    """Where a benchmark may write, and how much it is to do."""

    folder: Path
    sizes: Sizes
    before: Path | None = None
    """Another checkout, to be measured beside this one."""
    seen: Seen = field(default_factory=Seen)


@dataclass(frozen=True, slots=True)
class Result:
    """One line. `runs` and `baseline_runs` are in `unit`; `more`: other figures of the median's kind."""

    name: str
    unit: str
    runs: Sequence[float]
    baseline: str = ""
    baseline_runs: Sequence[float] = ()
    target: str = ""
    more: dict[str, float] = field(default_factory=dict)
    less: bool = False
    """Less is better."""
    ack: str = ""
    """What the baseline's ack means, where it has one."""
    is_floor: bool = False
    """The baseline is no peer, but the least that the work costs anybody."""

    @property
    def value(self) -> float:
        return median(self.runs)

    @property
    def ratio(self) -> float | None:
        return self.value / median(self.baseline_runs) if self.baseline_runs else None

    def line(self) -> str:
        """As JSON."""
        found: dict[str, Any] = {"name": self.name, "value": _short(self.value), "unit": self.unit}
        found["runs"] = [_short(run) for run in self.runs]
        if self.ratio is not None:
            found |= {"baseline": self.baseline, "baseline_value": _short(median(self.baseline_runs))}
            found["ratio"] = _short(self.ratio)
        if self.ack:
            found["ack"] = self.ack
        if self.target:
            found["target"] = self.target
        found |= {key: _short(number) for key, number in self.more.items()}
        return json.dumps(found)


def table(results: Sequence[Result]) -> str:
    """All results as aligned text, with the number of cores."""
    rows = [("what", "median", "unit", "ratio", "baseline", "target", "more")]
    for one in results:
        more = " ".join(f"{key}={_text(number)}" for key, number in one.more.items())
        ratio = f"{one.ratio:.3g}" if one.ratio is not None else "-"
        base = f"{one.baseline} {_text(median(one.baseline_runs))}" if one.baseline_runs else "-"
        rows.append((one.name, _text(one.value), one.unit, ratio, base, one.target or "-", more))
    return "\n".join(
        [
            aligned(rows, left=6),
            f"cores: {os.cpu_count()}, an empty turn of a Python loop: {turn_ns():.0f} ns",
        ]
    )


def aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    """The first row is the head. Cells of the first `left` columns begin together, of the others they end so.

    The last column is as it is.
    """
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def turn_ns(turns: int = 1_000_000) -> float:
    """How fast this machine is just now: the time that the emptiest loop takes for a turn."""
    started = time.perf_counter()
    for _ in range(turns):
        pass
    return (time.perf_counter() - started) / turns * 1e9


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _short(number: float) -> float:
    return float(f"{number:.5g}")


def _text(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
