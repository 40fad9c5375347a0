"""Everything between a request and a delivery, in every order that can be thought of.

The real commit, writer, wheel, loader, dispatch, replay and sessions run on a store in RAM and a clock that
is set by hand (tests/model/rig.py), an oracle listens (tests/model/oracle.py). Here are the two drivers:
random walks from a seed, and a hypothesis machine that shrinks what it finds.

A failing walk prints its seed: `walk(seed)` is the whole of it. FASTI_SOAK=1 makes both much longer;
FASTI_SEED=n starts the walks there.
"""

import logging
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.planted import Fault, finds
from tests.support.soak import SOAK, first_seed

from .oracle import Violation
from .rig import CLIENTS, FILTERS, TOPICS, Rig
from .walk import STEPS, Step, walk

WALKS = 20_000 if SOAK else 50
FAULT_WALKS = 800

NEAR: dict[str, Step] = {
    **{name: step for name, (_, step) in STEPS.items()},
    # A split draws when it is decided, which may be when the example is over.
    "split": lambda rig, r: STEPS["split"][1](rig, Random(r.randrange(1 << 30))),
    "split_far": lambda rig, r: STEPS["split_far"][1](rig, Random(r.randrange(1 << 30))),
    "put_near": lambda rig, r: rig.put([(_near(r), r.choice(TOPICS)) for _ in range(r.randrange(1, 5))]),
    "move_near": lambda rig, r: rig.move(r.randrange(6), _near(r)),
    "tick_near": lambda rig, r: rig.tick(r.randrange(41)),
    "publish_once": lambda rig, r: rig.publish(r.choice(TOPICS), 2),
    "fail_and_recover": lambda rig, r: _fail_and_recover(rig, r),
}
"""What hypothesis takes turns with: the steps of the walks, and such with any number that is small."""


def _near(r: Random) -> int:
    return r.randrange(-5, 41)


def _fail_and_recover(rig: Rig, r: Random) -> None:
    (rig.fail_write if r.random() < 0.5 else rig.fail_sync)()
    rig.recover(r.randrange(2))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the server says of the failures that it is made to have."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


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

    @rule(name=st.sampled_from(sorted(NEAR)), r=st.randoms(use_true_random=False))
    def step(self, name: str, r: Random) -> None:
        NEAR[name](self.rig, r)

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
