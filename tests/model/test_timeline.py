"""Everything between a request and a delivery, in every order that can be thought of.

The real commit, writer, wheel, loader, dispatch, replay and sessions run on a store in RAM and a clock that
is set by hand (tests/model/rig.py), an oracle listens (tests/model/oracle.py). Here are the two drivers:
random walks from a seed, and a hypothesis machine that shrinks what it finds.

A failing walk prints its seed: `walk(seed)` is the whole of it. FASTI_SOAK=1 makes both much longer;
FASTI_SEED=n starts the walks there.
"""

import logging
import os
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.planted import Fault, finds
from tests.support.soak import SOAK

from .oracle import Violation
from .rig import CLIENTS, DAY_MS, FILTERS, TOPICS, Rig
from .walk import walk

WALKS = 20_000 if SOAK else 50
FAULT_WALKS = 800

clients = st.sampled_from(CLIENTS)
small = st.integers(0, 5)
delays = st.one_of(
    st.integers(-5, 40), st.sampled_from((300, 1_500, 20_000, 100_000, 1_000_000, 3 * DAY_MS, 100 * DAY_MS))
)
topics = st.sampled_from(TOPICS)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the server says of the failures that it is made to have."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def first_seed() -> int:
    """The soak walks elsewhere each time; before a change is taken the same walks are gone each time."""
    return int(os.environ.get("FASTI_SEED") or (Random().randrange(1 << 40) if SOAK else 0))


def test_walks_keep_every_promise() -> None:
    first = first_seed()
    deliveries = splits = 0
    for seed in range(first, first + WALKS):
        try:
            rig = walk(seed)
        except BaseException:
            print(f"walk({seed}) failed; FASTI_SEED={seed} repeats it")
            raise
        deliveries += rig.oracle.checks
        splits += rig.splits + rig.jobs.cut
    assert splits > WALKS // 20, "the walks split too little to prove anything"
    assert deliveries > 5 * WALKS, "the walks deliver too little to prove anything"


class Machine(RuleBasedStateMachine):
    """The same steps, drawn by hypothesis."""

    rig: Rig

    @initialize(filters=st.tuples(*[st.sampled_from(FILTERS)] * len(CLIENTS)))
    def start(self, filters: tuple[str, ...]) -> None:
        self.rig = Rig()
        self.subscribe_all(filters)

    def subscribe_all(self, filters: tuple[str, ...]) -> None:
        for client_id in CLIENTS:
            self.rig.connect(client_id)
        self.rig.compose()
        self.rig.settle()
        for client_id, topic_filter in zip(CLIENTS, filters, strict=True):
            self.rig.subscribe(client_id, topic_filter, None)

    @rule(wishes=st.lists(st.tuples(delays, topics), min_size=1, max_size=4))
    def put(self, wishes: list[tuple[int, str]]) -> None:
        self.rig.put(wishes)

    @rule(number=st.integers(0, 2), times=st.integers(1, 2))
    def put_keyed(self, number: int, times: int) -> None:
        self.rig.put_keyed(number, times)

    @rule(topic=topics, qos=st.integers(0, 2))
    def publish(self, topic: str, qos: int) -> None:
        self.rig.publish(topic, qos)

    @rule(index=small)
    def cancel(self, index: int) -> None:
        self.rig.cancel(index)

    @rule(index=small, delay_ms=delays)
    def move(self, index: int, delay_ms: int) -> None:
        self.rig.move(index, delay_ms)

    @rule(retention_s=st.sampled_from((0, 30)))
    def expire(self, retention_s: int) -> None:
        self.rig.expire(retention_s)

    @rule(beat=st.booleans(), is_large=st.booleans(), is_slow=st.booleans())
    def compose(self, beat: bool, is_large: bool, is_slow: bool) -> None:
        if beat:
            self.rig.heartbeat()
        self.rig.compose(is_large=is_large, is_slow=is_slow)

    @rule()
    def settle(self) -> None:
        self.rig.settle()

    @rule(rows=st.integers(1, 4), limit=st.integers(1, 4))
    def load_and_dispatch(self, rows: int, limit: int) -> None:
        self.rig.load(rows)
        self.rig.dispatch(limit)

    @rule(limit=st.integers(1, 4))
    def dispatch(self, limit: int) -> None:
        self.rig.dispatch(limit)

    @rule()
    def replay(self) -> None:
        self.rig.replay()

    @rule()
    def release(self) -> None:
        self.rig.release()

    @rule(by_ms=st.one_of(st.integers(0, 40), st.sampled_from((-1, -300, -20_000, 1_500, 60_000, DAY_MS))))
    def tick(self, by_ms: int) -> None:
        self.rig.tick(by_ms)

    @rule(client_id=clients)
    def connect(self, client_id: str) -> None:
        self.rig.connect(client_id)

    @rule(client_id=clients, is_buried=st.booleans())
    def disconnect(self, client_id: str, is_buried: bool) -> None:
        self.rig.disconnect(client_id)
        if is_buried:
            self.rig.bury()

    @rule(client_id=clients, topic_filter=st.sampled_from(FILTERS), back=st.sampled_from((None, 5, DAY_MS)))
    def subscribe(self, client_id: str, topic_filter: str, back: int | None) -> None:
        self.rig.subscribe(client_id, topic_filter, back)

    @rule(client_id=clients, index=small)
    def read(self, client_id: str, index: int) -> None:
        self.rig.read(client_id, index)

    @rule(client_id=clients, index=small)
    def ack_late(self, client_id: str, index: int) -> None:
        self.rig.ack_late(client_id, index)

    @rule(client_id=clients, room=st.sampled_from((0, 1, None)))
    def room(self, client_id: str, room: int | None) -> None:
        self.rig.room(client_id, room)

    @rule(index=small, r=st.randoms(use_true_random=False))
    def split(self, index: int, r: Random) -> None:
        self.rig.split(index, r)

    @rule(index=small)
    def job_step(self, index: int) -> None:
        self.rig.jobs.step(index)

    @rule(index=small)
    def job_abort(self, index: int) -> None:
        self.rig.jobs.abort(index)

    @rule()
    def sweep(self) -> None:
        self.rig.sweep()

    @rule()
    def job_sweep(self) -> None:
        self.rig.jobs.sweep()

    @rule(delay_ms=delays, topic=topics)
    def spoil(self, delay_ms: int, topic: str) -> None:
        self.rig.spoil(delay_ms, topic)

    @rule(survivors=st.integers(0, 2), is_write=st.booleans())
    def fail(self, survivors: int, is_write: bool) -> None:
        if is_write:
            self.rig.fail_write()
        else:
            self.rig.fail_sync()
        if survivors:
            self.rig.recover(survivors - 1)

    @rule(is_refused=st.booleans())
    def mark(self, is_refused: bool) -> None:
        self.rig.mark(is_refused=is_refused)

    @rule(survivors=st.integers(0, 3), wall_by_ms=st.sampled_from((0, 5, -20, -20_000, 60_000, DAY_MS)))
    def kill(self, survivors: int, wall_by_ms: int) -> None:
        self.rig.kill(survivors, wall_by_ms)

    @invariant()
    def check(self) -> None:
        if hasattr(self, "rig"):
            self.rig.check()

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.drain()


def test_machine_keeps_every_promise() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=3_000 if SOAK else 25,
            stateful_step_count=80 if SOAK else 50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@finds("walk")
def test_a_naive_rule_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof that the walks can fail."""
    fault.plant(monkeypatch)
    first = fault.drivers["walk"]
    for seed in range(first, first + FAULT_WALKS):
        try:
            walk(seed)
        except (Violation, AssertionError, KeyError):
            return
    pytest.fail(f"{FAULT_WALKS} walks found nothing wrong with: {fault.why}")
