"""The promises of tests/model/test_timeline.py on a log that three nodes share.

Appends are lost, answered late or never, nodes are killed and lose what they had not synced, another one
leads while the last one still believes that it does. Clocks are set, or run wrong. People publish into the
log, purge or delete it, let it get full, start a node with another key or on an old copy of its data. Rows of
a node rot. What is acked survives, whoever leads, and nothing is early by more than clocks may differ.
FASTI_SOAK=1 and FASTI_SEED=n as there, `walk_nodes(seed)` is the whole of a walk.
"""

import logging
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from shards.errors import ShardsError
from tests.support.logs import Lost
from tests.support.planted import Fault, finds
from tests.support.soak import SOAK, first_seed

from .nodes import NodesRig
from .oracle import Violation
from .rig import CLIENTS, FILTERS
from .test_timeline import NEAR, Machine
from .walk import NODE_STEPS, walk_nodes

WALKS = 10_000 if SOAK else 50
FAULT_WALKS = 400


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the server says of the failures that it is made to have."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_walks_over_nodes_keep_every_promise() -> None:
    first = first_seed()
    deliveries = terms = fenced = splits = gave_up = 0
    for seed in range(first, first + WALKS):
        try:
            rig = walk_nodes(seed)
        except BaseException:
            print(f"walk_nodes({seed}) failed; FASTI_SEED={seed} repeats it")
            raise
        deliveries += rig.oracle.checks
        terms += rig.terms
        fenced += rig.fenced
        splits += rig.splits + rig.jobs.cut
        gave_up += rig.gave_up
    assert terms > 2 * WALKS, "the walks change the leader too little to prove anything"
    assert fenced > WALKS // 10, "those who led before write too little to prove anything"
    assert splits > WALKS // 40, "the walks split too little to prove anything"
    assert deliveries > 5 * WALKS, "the walks deliver too little to prove anything"
    assert gave_up > WALKS // 100, "too few clocks are wrong to prove anything"


def test_rot_and_a_log_that_is_lost_or_full_break_no_promise() -> None:
    first = first_seed()
    handed_over = begun = 0
    for seed in range(first, first + WALKS):
        try:
            rig = walk_nodes(seed, breaks=True)
        except BaseException:
            print(f"walk_nodes({seed}, breaks=True) failed; FASTI_SEED={seed} repeats it")
            raise
        handed_over += rig.handed_over
        begun += rig.begun
    assert handed_over > WALKS // 10, "too few rows rot to prove anything"
    assert begun > WALKS // 10, "the log is lost too seldom to prove anything"


class Nodes(Machine):
    """The same steps, and those of nodes."""

    rig: NodesRig

    @initialize(
        filters=st.tuples(*[st.sampled_from(FILTERS)] * len(CLIENTS)), r=st.randoms(use_true_random=False)
    )
    def start(self, filters: tuple[str, ...], r: Random) -> None:
        self.rig = NodesRig(r)
        self.subscribe_all(filters)

    @rule(name=st.sampled_from(sorted({*NEAR, *NODE_STEPS})), r=st.randoms(use_true_random=False))
    def step(self, name: str, r: Random) -> None:
        if name in NEAR:
            NEAR[name](self.rig, r)
        else:
            NODE_STEPS[name][1](self.rig, r)


def test_machine_of_nodes_keeps_every_promise() -> None:
    run_state_machine_as_test(
        Nodes,
        settings=settings(
            max_examples=1_500 if SOAK else 15,
            stateful_step_count=80 if SOAK else 50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@finds("nodes")
def test_a_naive_rule_of_nodes_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof that the walks can fail."""
    fault.plant(monkeypatch)
    find(fault, fault.drivers["nodes"], breaks=False)


@finds("rot")
def test_a_naive_rule_of_rot_and_a_lost_log_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    find(fault, fault.drivers["rot"], breaks=True)


def find(fault: Fault, first: int, *, breaks: bool) -> None:
    for seed in range(first, first + FAULT_WALKS):
        try:
            walk_nodes(seed, breaks=breaks)
        except (Violation, AssertionError, KeyError, ShardsError):
            return
    pytest.fail(f"{FAULT_WALKS} walks found nothing wrong with: {fault.why}")


class Late(Random):
    """Each append that fails is late, and the store is reopened after it."""

    def choice(self, among: "tuple[Lost, ...]") -> Lost:  # type: ignore[override]
        return Lost.LATE if Lost.LATE in among else among[0]

    def random(self) -> float:
        return 0.0


def test_what_the_log_takes_late_does_not_appear_behind_the_horizon() -> None:
    """The horizon had passed its place; a request that was repeated by its key was told that it is there."""
    rig = NodesRig(Late())
    rig.connect("p0")
    rig.compose()
    rig.settle()
    rig.subscribe("p0", "#", None)
    rig.put_keyed(1)
    rig.compose()
    rig.fail_sync()
    rig.recover(0)
    rig.heartbeat()
    rig.compose()
    rig.settle()
    rig.tick(1_200)
    rig.load(4)
    rig.dispatch(4)
    rig.arrive(0)
    for _ in range(2):
        rig.put_keyed(1)
        rig.compose()
        rig.settle()
        rig.recover(0)
    assert rig.oracle.letters["key1"].is_accepted
    rig.drain()
