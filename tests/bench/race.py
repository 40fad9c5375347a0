"""fasti and what it is compared with, in turns: one round of each, again and again, on the same machine in
the same minutes. A figure is the median of its rounds, a ratio that of two medians.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median

from .peers import Kind
from .process import Running, Server, Spends, serving
from .results import Env, Result


@dataclass(frozen=True, slots=True)
class Sample:
    """What one round has found; `more`: other figures of it."""

    value: float
    more: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Spent:
    """What a stretch of work has taken; known at its end. `started` by `perf_counter`."""

    started: float
    seconds: float = 0.0
    cpu_s: float = 0.0

    def by(self, count: int, **more: float) -> Sample:
        """So many a second, and the processor time of each."""
        return Sample(count / self.seconds, {"cpu_us": self.cpu_s / count * 1e6, **more})


@contextmanager
def spent(process: Spends) -> Iterator[Spent]:
    """By the clock, and by the process that does the work."""
    cpu_s, found = process.cpu_s(), Spent(time.perf_counter())
    yield found
    found.seconds, found.cpu_s = time.perf_counter() - found.started, process.cpu_s() - cpu_s


@dataclass(frozen=True, slots=True)
class Entry:
    """Somebody who takes part. `ack`: what it means by one. `round` is told its number, from 0."""

    name: str
    round: Callable[[int], Awaitable[Sample]]
    ack: str = ""
    is_floor: bool = False
    """No peer, but the least that the work costs anybody."""


async def race(
    env: Env,
    name: str,
    unit: str,
    entries: Sequence[Entry],
    *,
    target: str = "",
    less: bool = False,
    also: Sequence[tuple[str, str]] = (),
) -> list[Result]:
    """The first of `entries` is ours; one result beside each other one, or one alone.

    `also`: names and units of other figures of the rounds, of which less is better: rows of their own.
    """
    found: list[list[Sample]] = [[] for _ in entries]
    for number in range(env.sizes.runs):
        for entry, samples in zip(entries, found, strict=True):
            samples.append(await entry.round(number))
    results = _rows(name, unit, entries, found, target, less)
    for key, of in also:
        part = [[Sample(sample.more[key]) for sample in samples] for samples in found]
        results += _rows(f"{name} {key}", of, entries, part, "", True)
    return results


def _rows(
    name: str, unit: str, entries: Sequence[Entry], found: Sequence[Sequence[Sample]], target: str, less: bool
) -> list[Result]:
    runs = [[sample.value for sample in samples] for samples in found]
    more = _medians(found[0])
    if len(entries) == 1:
        return [Result(name, unit, runs[0], "", (), target, more, less)]
    return [
        Result(
            name,
            unit,
            runs[0],
            entry.name,
            theirs,
            target,
            more | {f"their_{key}": number for key, number in _medians(samples).items()},
            less,
            entry.ack,
            entry.is_floor,
        )
        for entry, theirs, samples in list(zip(entries, runs, found, strict=True))[1:]
    ]


def _medians(samples: Sequence[Sample]) -> dict[str, float]:
    return {key: median(sample.more[key] for sample in samples) for key in samples[0].more}


@contextmanager
def contenders(env: Env, **settings: object) -> Iterator[list[tuple[str, Server]]]:
    """Ours and, if one was given, that of the other checkout, each with its name."""
    with ExitStack() as stack:
        ours = stack.enter_context(serving(env.folder / "data", **settings))
        env.seen.build = ours.build()
        found = [("fasti", ours)]
        if env.before is not None:
            other = serving(env.folder / "before", env.before, **settings)
            found.append(("before", stack.enter_context(other)))
        yield found


def peer(env: Env, stack: ExitStack, kind: Kind) -> Running | None:
    """One, started until `stack` ends; None if it is not installed, which is said at the end of the run."""
    found = stack.enter_context(kind.running(env.folder))
    if found is None:
        env.seen.missing.add(kind.name)
    return found
