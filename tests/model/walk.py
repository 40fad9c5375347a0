"""Random walks over the rig: every step is drawn from one seed, which names the run for ever."""

from collections.abc import Callable
from random import Random

from tests.support.logs import Lost

from .nodes import NodesRig
from .rig import CLIENTS, DAY_MS, FILTERS, TOPICS, Rig

DELAYS = (0, 0, -5, 1, 2, 3, 8, 15, 40, 300, 1_500, 5_000, 20_000, 100_000, 1_000_000, 3_600_000)
FAR = (3 * DAY_MS, 100 * DAY_MS)
TICKS = (0, 1, 1, 2, 5, 40, 300)
JUMPS = (-1, -1, -300, -1_500, -20_000, 1_500, 5_000, 20_000, 60_000, 960_000, DAY_MS)
FAULTS = (3_600_000, -3_600_000, 60_000, -60_000, 6_000, 4_000, 4_000, 4_000, -4_000, -4_000, -4_000)
"""Of a node's clock: set, or running wrong."""
RESTARTS = (0, 1, 5, -4, -20, -1_500, -20_000, 60_000, DAY_MS, -DAY_MS)

Step = Callable[[Rig, Random], None]


def _delay(r: Random) -> int:
    return r.choice(FAR) if r.random() < 0.03 else r.choice(DELAYS)


def _put(rig: Rig, r: Random) -> None:
    rig.put(
        [(_delay(r), r.choice(TOPICS)) for _ in range(r.choice((1, 1, 2, 5)))], r.choice((0, 0, 0, 5_000))
    )


def _subscribe(rig: Rig, r: Random) -> None:
    back = r.choice((None, None, None, 5, 1_000, DAY_MS))
    rig.subscribe(r.choice(CLIENTS), r.choice(FILTERS), back)


def _recent(r: Random) -> int:
    return min(r.randrange(10), r.randrange(10))


def _move_and_cancel(rig: Rig, r: Random) -> None:
    """Without waiting for an answer."""
    index = _recent(r)
    rig.move(index, _delay(r))
    if r.random() < 0.5:
        rig.compose()
    rig.cancel(index)


def _restart_and_cancel(rig: Rig, r: Random) -> None:
    """A process that has just started is asked to take back what the last one may have sent."""
    rig.put([(r.choice((40, 300, 1_500)), r.choice(TOPICS))])
    rig.compose()
    rig.settle()
    rig.settle()
    rig.kill(r.randrange(3), r.choice((0, 1, 5, -4, -20)))
    rig.cancel(0)
    rig.compose()


def _cancel_and_pass(rig: Rig, r: Random) -> None:
    """The clock passes a message while its cancel is being synced."""
    rig.put([(r.choice((2, 3, 8)), r.choice(TOPICS))])
    for _ in range(2):
        rig.compose()
        rig.settle()
        rig.load(4)
    rig.cancel(0)
    rig.compose()
    rig.tick(r.choice((2, 5, 40)))
    rig.dispatch(4)


def _fail_and_pass(rig: Rig, r: Random) -> None:
    """The store fails while messages become due; a process that starts earlier is asked to take one back."""
    rig.put([(r.choice((3_000, 4_000, 20_000)), r.choice(TOPICS))])
    for _ in range(3):
        rig.compose()
        rig.settle()
    rig.put([(_delay(r), r.choice(TOPICS))])
    rig.fail_write()
    rig.recover(0, is_refused=True)
    for _ in range(3):
        rig.tick(r.choice((2_500, 5_000, 20_000)))
        rig.heartbeat()
        rig.mark()
        rig.load(4)
        rig.dispatch(4)
        rig.replay()
    rig.kill(r.randrange(3), -r.choice((0, 5_000, 20_000, 60_000, DAY_MS)))
    rig.cancel(0)
    rig.compose()


def _half_and_pass(rig: Rig, r: Random) -> None:
    """The clock passes what a request in steps has reserved, while it is decided; or the store fails then, or
    the request does."""
    rig.put([(r.choice((2, 8, 40)), r.choice(TOPICS)) for _ in range(2)])
    for _ in range(2):
        rig.compose()
        rig.settle()
        rig.load(4)
    is_failing = r.random() < 0.2
    if is_failing:
        rig.put([(_delay(r), r.choice(TOPICS))])
        rig.compose()
    if r.random() < 0.7:
        rig.put([(r.choice((0, 1, 2, 40)), r.choice(TOPICS)) for _ in range(5)])
    else:
        rig.spoil(r.choice((1, 40, 5_000)), r.choice(TOPICS))
    for _ in range(r.randrange(1, 8)):
        rig.compose(is_large=True, is_slow=True)
        rig.tick(r.choice(TICKS))
        rig.heartbeat()
        rig.load(4)
        rig.dispatch(4)
    if is_failing:
        rig.fail_sync()


def _split_far(rig: Rig, r: Random) -> None:
    """Several messages in one far slice, which is cut."""
    rig.put([(r.choice((3 * DAY_MS, 1_000_000)) + r.randrange(40), r.choice(TOPICS)) for _ in range(5)])
    for _ in range(2):
        rig.compose()
        rig.settle()
    rig.split(r.randrange(3), r)


STEPS: dict[str, tuple[float, Step]] = {
    "put": (12, _put),
    "spoil": (0.7, lambda rig, r: rig.spoil(_delay(r), r.choice(TOPICS))),
    "put_keyed": (2, lambda rig, r: rig.put_keyed(r.randrange(3), r.choice((1, 1, 2)))),
    "publish": (3, lambda rig, r: rig.publish(r.choice(TOPICS), r.choice((0, 1)))),
    "cancel": (7, lambda rig, r: rig.cancel(_recent(r))),
    "move": (7, lambda rig, r: rig.move(_recent(r), _delay(r))),
    "move_and_cancel": (2, _move_and_cancel),
    "restart_and_cancel": (0.3, _restart_and_cancel),
    "cancel_and_pass": (0.6, _cancel_and_pass),
    "expire": (5, lambda rig, r: rig.expire(r.choice((0, 0, 30)))),
    "sweep": (3, lambda rig, r: rig.sweep()),
    "heartbeat": (6, lambda rig, r: rig.heartbeat()),
    "compose": (14, lambda rig, r: rig.compose(is_large=r.random() < 0.6, is_slow=r.random() < 0.6)),
    "settle": (13, lambda rig, r: rig.settle()),
    "dispatch": (13, lambda rig, r: rig.dispatch(r.choice((1, 2, 4)))),
    "load": (10, lambda rig, r: rig.load(r.choice((1, 2, 4)))),
    "replay": (10, lambda rig, r: rig.replay()),
    "release": (3, lambda rig, r: rig.release()),
    "tick": (10, lambda rig, r: rig.tick(r.choice(TICKS))),
    "jump": (4, lambda rig, r: rig.tick(r.choice(JUMPS))),
    "connect": (4, lambda rig, r: rig.connect(r.choice(CLIENTS))),
    "connect_clean": (0.3, lambda rig, r: rig.connect(r.choice(CLIENTS), clean=True)),
    "disconnect": (1.5, lambda rig, r: rig.disconnect(r.choice(CLIENTS))),
    "bury": (3, lambda rig, r: rig.bury()),
    "subscribe": (5, _subscribe),
    "read": (20, lambda rig, r: rig.read(r.choice(CLIENTS), r.choice((0, 0, 1, 2)))),
    "ack_late": (2, lambda rig, r: rig.ack_late(r.choice(CLIENTS), r.randrange(6))),
    "room": (2, lambda rig, r: rig.room(r.choice(CLIENTS), r.choice((0, 1, 2, None)))),
    "fail_write": (0.4, lambda rig, r: rig.fail_write()),
    "fail_sync": (0.8, lambda rig, r: rig.fail_sync()),
    "mark": (2, lambda rig, r: rig.mark(is_refused=r.random() < 0.05)),
    "fail_and_pass": (0.4, _fail_and_pass),
    "recover": (2, lambda rig, r: rig.recover(r.randrange(3), is_refused=r.random() < 0.2)),
    "half_and_pass": (0.7, _half_and_pass),
    "split": (5, lambda rig, r: rig.split(r.randrange(5), r)),
    "split_far": (0.7, _split_far),
    "job_step": (20, lambda rig, r: rig.jobs.step(r.randrange(2))),
    "job_abort": (0.4, lambda rig, r: rig.jobs.abort(r.randrange(2))),
    "job_sweep": (2, lambda rig, r: rig.jobs.sweep()),
    "kill": (1.2, lambda rig, r: rig.kill(r.randrange(4), r.choice(RESTARTS))),
}
_NAMES = tuple(STEPS)
_WEIGHTS = tuple(weight for weight, _ in STEPS.values())


def _late_and_again(rig: NodesRig, r: Random) -> None:
    """An append is given up, the server goes on without it; then it comes, or not, and is asked for again."""
    number = r.randrange(2)
    rig.put_keyed(number)
    rig.put([(_delay(r), r.choice(TOPICS))])
    rig.compose()
    rig.fail_sync((Lost.LATE, Lost.LATE, Lost.ANSWER))
    rig.recover(0)
    for _ in range(2):
        rig.tick(r.choice((40, 300, 900)))
        rig.load(4)
        rig.dispatch(4)
    for index in range(3):
        rig.arrive(index)
    for _ in range(2):
        rig.put_keyed(number)
        rig.compose()
        rig.settle()
        rig.recover(0)


def _two_who_lead(rig: NodesRig, r: Random) -> None:
    """The elder comes to what is cancelled, moved or due at the new leader."""
    rig.put([(r.choice((40, 300, 1_500, 2_500)), r.choice(TOPICS)) for _ in range(2)])
    for _ in range(2):
        rig.compose()
        rig.settle()
        rig.load(4)
    rig.put([(_delay(r), r.choice(TOPICS))])
    if r.random() < 0.5:
        rig.compose()
    rig.fail_over(r.randrange(2))
    if r.random() < 0.5:
        rig.cancel(0)
    else:
        rig.move(0, _delay(r))
    rig.compose()
    rig.settle()
    for _ in range(r.randrange(6)):
        rig.tick(r.choice((0, 40, 300, 1_500)))
        rig.elder_step(r.randrange(6))


def _full_and_dark(rig: NodesRig, r: Random) -> None:
    """The log gets full and is trimmed, and the leader's power goes before its disk comes to it."""
    rig.fill()
    for _ in range(r.randrange(6)):
        rig.put([(_delay(r), r.choice(TOPICS))], r.choice((0, 1_000)))
        rig.compose()
        rig.settle()
    rig.make_room()
    rig.kill(0, 0)


NODE_STEPS: dict[str, tuple[float, Callable[[NodesRig, Random], None]]] = {
    "fail_over": (1.2, lambda rig, r: rig.fail_over(r.randrange(2))),
    "elder_step": (6, lambda rig, r: rig.elder_step(r.randrange(6))),
    "end_elder": (0.5, lambda rig, r: rig.end_elder()),
    "late_and_again": (1.2, _late_and_again),
    "two_who_lead": (0.6, _two_who_lead),
    "arrive": (1.5, lambda rig, r: rig.arrive(r.randrange(3))),
    "follow": (5, lambda rig, r: rig.follow(r.randrange(3))),
}
MISHAPS: dict[str, tuple[float, Callable[[NodesRig, Random], None]]] = {
    "beat": (3, lambda rig, r: rig.beat()),
    "fault_of_clock": (1.5, lambda rig, r: rig.fault_of_clock(r.randrange(3), r.choice(FAULTS))),
    "stray": (1, lambda rig, r: rig.stray()),
    "purge": (0.5, lambda rig, r: rig.purge()),
    "other_key": (0.5, lambda rig, r: rig.other_key(r.randrange(3))),
    "save": (1, lambda rig, r: rig.save(r.randrange(3))),
    "restore": (0.5, lambda rig, r: rig.restore(r.randrange(3))),
}
BREAKAGES: dict[str, tuple[float, Callable[[NodesRig, Random], None]]] = {
    "rot": (2, lambda rig, r: rig.rot(r.randrange(3))),
    "scrub": (1.5, lambda rig, r: rig.scrub(r.randrange(3))),
    "replace": (0.5, lambda rig, r: rig.replace(r.randrange(3))),
    "delete": (0.5, lambda rig, r: rig.delete(r.randrange(3))),
    "decide_late": (1, lambda rig, r: rig.decide_late()),
    "fill": (0.8, lambda rig, r: rig.fill()),
    "make_room": (2, lambda rig, r: rig.make_room()),
    "full_and_dark": (0.5, _full_and_dark),
    "give_room": (0.5, lambda rig, r: rig.give_room()),
}


def walk_nodes(seed: int, steps: int | None = None, *, breaks: bool = False) -> NodesRig:
    """The same on a log that several nodes share, with mishaps of clocks and of people. `breaks`: and rows
    rot, the log is deleted, or full."""
    table = {**NODE_STEPS, **MISHAPS, **(BREAKAGES if breaks else {})}
    r = Random(seed)
    rig = NodesRig(Random(seed))

    def step() -> None:
        weights = (*_WEIGHTS, *(weight for weight, _ in table.values()))
        name = r.choices((*_NAMES, *table), weights)[0]
        rig.history.append(name)
        with rig.as_a_turn():
            if name in table:
                table[name][1](rig, r)
            else:
                STEPS[name][1](rig, r)

    _go(rig, r, step, steps)
    return rig


def walk(seed: int, steps: int | None = None) -> Rig:
    """One run; the rig as it ended. Raises Violation or whatever the server raised."""
    r = Random(seed)
    rig = Rig()

    def step() -> None:
        name = r.choices(_NAMES, _WEIGHTS)[0]
        rig.history.append(name)
        STEPS[name][1](rig, r)

    _go(rig, r, step, steps)
    return rig


def _go(rig: Rig, r: Random, step: Callable[[], None], steps: int | None) -> None:
    for client_id in CLIENTS:
        rig.connect(client_id)
    rig.compose()
    rig.settle()
    for client_id in CLIENTS:
        rig.subscribe(client_id, r.choice(FILTERS), None)
    for _ in range(steps or r.choice((30, 80, 200))):
        step()
        rig.check()
    rig.history.append("drain")
    rig.drain()
