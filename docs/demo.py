"""`make demo`: a few seconds of fasti, live.

Against a running server (`make run` in another terminal; FASTI_URL or http://127.0.0.1:8080) it schedules 300
messages that are due over six seconds, fifty of them in the same millisecond, cancels three, and watches:

  - a *watcher* gets each one as it becomes due. Its lateness is the arrival here minus the due time, so it
    includes the way through both sockets. Expected: small, never negative;
  - a persistent *session* gets them too, goes away for two seconds in the middle and comes back. Expected:
    what it missed, all of it, in the order of the timeline, and nothing of what was cancelled.

Server and demo should run on one machine, or the two clocks have to agree. Exit code 0 if all went as
expected, 1 if anything was missing, early, out of order or not cancelled, 3 if no server is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import fasti

try:
    from rich.console import Console
    from rich.live import Live
except ModuleNotFoundError:
    Console = Live = None  # type: ignore[assignment, misc]

SPREAD, BURST, CANCELLED = 247, 50, 3
LEAD_S, SPAN_S = 1.5, 6.0
AWAY_S, BACK_S = 3.0, 5.0
PATIENCE_S = 10.0
SHOW_EVERY = 15
BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 1_000)
FAILED, NO_SERVER = 1, 3


def late_ms(delivery: fasti.Delivery) -> float:
    """Now minus due, ms."""
    assert delivery.due is not None
    return (datetime.now(UTC) - delivery.due) / timedelta(milliseconds=1)


def place(delivery: fasti.Delivery) -> tuple[datetime, int]:
    """Where it stands on the timeline: due, then the seq that its id ends with."""
    assert delivery.due is not None
    assert delivery.id is not None
    return delivery.due, int(delivery.id[-12:], 16)


def clock_text(delivery: fasti.Delivery) -> str:
    """Its due, as a time of day with ms."""
    return f"{delivery.due:%H:%M:%S.%f}"[:-3]


def rank(values: list[float], share: float) -> float:
    """The value below which `share` of them lie; `values` sorted, not empty."""
    return values[min(len(values) - 1, int(len(values) * share))]


class Screen:
    """Lines that scroll, and below them, on a terminal with rich, a histogram that grows."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._console: Any = None
        self._live: Any = None
        if Console is not None and sys.stdout.isatty():
            self._console = Console(highlight=False)
            self._live = Live(self.histogram(), console=self._console, refresh_per_second=8)

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(self.histogram())
            self._live.stop()
        else:
            self.say(self.histogram())

    def say(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, markup=False)
        else:
            print(text, flush=True)  # noqa: T201

    def count(self, ms: float) -> None:
        self._counts[sum(bound <= ms for bound in BOUNDS_MS)] += 1
        if self._live is not None:
            self._live.update(self.histogram())

    def histogram(self) -> str:
        names = [f"< {bound:,} ms" for bound in BOUNDS_MS] + [f">= {BOUNDS_MS[-1]:,} ms"]
        most = max(*self._counts, 1)
        rows = [
            f"  {name:>11}  {'#' * -(-count * 40 // most):<40} {count or ''}"
            for name, count in zip(names, self._counts, strict=True)
        ]
        return "\n".join(["", "  lateness at the watcher", *rows])


@dataclass
class Outcome:
    """What was seen, by message id where a message counts once."""

    lateness: dict[str, float] = field(default_factory=dict)
    session: dict[str, fasti.Delivery] = field(default_factory=dict)
    replayed: list[fasti.Delivery] = field(default_factory=list)
    disorder: int = 0
    cancelled: int = 0
    intruders: int = 0
    """Deliveries of what was cancelled."""


@dataclass(frozen=True)
class Plan:
    """One run: its topics, its session, when it begins (server time), what it schedules."""

    name: str
    begin: datetime
    count: int = SPREAD + BURST

    @property
    def topics(self) -> str:
        return f"demo/{self.name}/#"

    @property
    def session(self) -> str:
        return f"demo-{self.name}"

    def messages(self) -> list[tuple[str, timedelta]]:
        """(topic, due after `begin`) of all that is to arrive: spread by chance, and one burst."""
        chance = random.Random(self.name)
        dues = [timedelta(seconds=chance.uniform(0, SPAN_S)) for _ in range(SPREAD)]
        burst = [timedelta(seconds=AWAY_S + 0.5)] * BURST
        return [(f"demo/{self.name}/{n}", due) for n, due in enumerate(dues + burst)]

    @property
    def doomed(self) -> str:
        return f"demo/{self.name}/cancelled"

    def is_cancelled(self, delivery: fasti.Delivery) -> bool:
        return delivery.topic == self.doomed

    def left_s(self, after_s: float) -> float:
        """Seconds from now until `after_s` after the begin; 0 if that has passed."""
        at = self.begin + timedelta(seconds=after_s)
        return max(0.0, (at - datetime.now(UTC)).total_seconds())


async def schedule(c: fasti.Client, plan: Plan, outcome: Outcome, screen: Screen) -> None:
    """Schedule all, and a few more that are cancelled at once."""
    started = time.monotonic()
    await asyncio.gather(
        *(c.messages.schedule(topic, topic, at=plan.begin + after) for topic, after in plan.messages())
    )
    screen.say(f"scheduled {plan.count} messages in {(time.monotonic() - started) * 1000:.0f} ms")
    doomed = [
        await c.messages.schedule(plan.doomed, "", at=plan.begin + timedelta(seconds=2))
        for _ in range(CANCELLED)
    ]
    outcome.cancelled = sum([await message.cancel() for message in doomed])
    screen.say(f"and {CANCELLED} more, {outcome.cancelled} of them cancelled: nobody will get those")


async def follow(c: fasti.Client, plan: Plan, outcome: Outcome, screen: Screen) -> None:
    """Subscribe, then schedule, and be there all the time."""
    async with c.subscribe(plan.topics) as deliveries:
        await schedule(c, plan, outcome, screen)
        async for delivery in deliveries:
            ms = late_ms(delivery)
            await delivery.ack()
            if plan.is_cancelled(delivery):
                outcome.intruders += 1
            elif delivery.id not in outcome.lateness:
                outcome.lateness[str(delivery.id)] = ms
                screen.count(ms)
                if len(outcome.lateness) % SHOW_EVERY == 1:
                    screen.say(f"  due {clock_text(delivery)}  +{ms:5.1f} ms  {delivery.topic}")
            if len(outcome.lateness) >= plan.count:
                return


async def attend(c: fasti.Client, plan: Plan, outcome: Outcome, screen: Screen) -> None:
    """Be a session that is away for a while."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(plan.left_s(AWAY_S)), subscribed(c, plan) as deliveries:
            await collect(deliveries, plan, outcome)
    before = len(outcome.session)
    screen.say(f"session {plan.session} goes away, after {before} messages")
    await asyncio.sleep(plan.left_s(BACK_S))
    back = datetime.now(UTC)
    async with subscribed(c, plan) as deliveries:
        await collect(deliveries, plan, outcome)
    outcome.replayed = [d for d in list(outcome.session.values())[before:] if place(d)[0] <= back]
    screen.say(f"session {plan.session} came back and was given {len(outcome.replayed)} that it had missed")
    for delivery in outcome.replayed[:: max(1, len(outcome.replayed) // 5)]:
        screen.say(f"  missed {clock_text(delivery)}  {delivery.topic}")


def subscribed(c: fasti.Client, plan: Plan) -> fasti.Subscription:
    return c.subscribe(plan.topics, session=plan.session, expiry=timedelta(minutes=5))


async def collect(deliveries: fasti.Subscription, plan: Plan, outcome: Outcome) -> None:
    """Take deliveries of the session until it has all; note what comes out of order."""
    newest = max((place(d) for d in outcome.session.values()), default=None)
    async for delivery in deliveries:
        await delivery.ack()
        if plan.is_cancelled(delivery):
            outcome.intruders += 1
        elif delivery.id not in outcome.session:
            here = place(delivery)
            outcome.disorder += newest is not None and here < newest
            newest = here
            outcome.session[str(delivery.id)] = delivery
        if len(outcome.session) >= plan.count:
            return


def judge(outcome: Outcome, plan: Plan, screen: Screen) -> int:
    """Say what came of it; the exit code."""
    late = sorted(outcome.lateness.values())
    early = sum(ms < 0 for ms in late)
    missing = 2 * plan.count - len(late) - len(outcome.session)
    kept = CANCELLED - outcome.cancelled + outcome.intruders
    screen.say("")
    screen.say(f"  arrived at the watcher   {len(late)} of {plan.count}")
    screen.say(
        f"  arrived at the session   {len(outcome.session)} of {plan.count}, {outcome.disorder} out of order"
    )
    screen.say(f"  missed, then replayed    {len(outcome.replayed)}")
    screen.say(f"  cancelled, but arrived   {outcome.intruders}")
    screen.say(f"  early                    {early}")
    if late:
        p50, p99 = rank(late, 0.5), rank(late, 0.99)
        screen.say(f"  lateness                 p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {late[-1]:.1f} ms")
    is_good = not (early or missing or outcome.disorder or kept) and bool(outcome.replayed)
    screen.say("all as it should be" if is_good else f"NOT as it should be: {missing} missing, {early} early")
    return 0 if is_good else FAILED


async def run(c: fasti.Client) -> int:
    outcome, name = Outcome(), secrets.token_hex(4)
    async with subscribed(c, Plan(name, datetime.now(UTC))):
        pass  # the session exists from here on, before its first message is scheduled
    info = await c.info()
    plan = Plan(name, info.now + timedelta(seconds=LEAD_S))
    with Screen() as screen:
        screen.say(f"server {c.url}, version {info.version}; topics {plan.topics}")
        try:
            async with asyncio.timeout(LEAD_S + SPAN_S + PATIENCE_S):
                await asyncio.gather(attend(c, plan, outcome, screen), follow(c, plan, outcome, screen))
        except TimeoutError:
            screen.say(f"gave up {PATIENCE_S:.0f} s after the last message was due")
    with contextlib.suppress(fasti.Error):
        await c.sessions.remove(plan.session)
    return judge(outcome, plan, screen)


def complain(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201


async def main() -> int:
    async with fasti.Client(retry=fasti.Retry(attempts=3)) as c:
        try:
            info = await c.info()
            if info.clock == "system":
                return await run(c)
            complain(f"the server at {c.url} has a simulated clock, the demo needs one that runs")
        except fasti.Unreachable:
            complain(f"no server listens at {c.url}: start one with `make run` in another terminal")
            return NO_SERVER
        except fasti.Error as error:
            complain(f"the server said no: {error}")
    return FAILED


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
