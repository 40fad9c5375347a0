"""The wall clock jumps: by 2 ms, a second, a minute, a day, back and forth. Neither early nor stalled.

Never early is meant by the wall clock: a message is not handed on before the clock has shown its due. When
the clock was set back, a message between the two times waits in the table `held`; it comes out when the
clock reaches its due, however often it is set back before.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shards.rocks import RocksStore
from shards.store import Store
from tests.support.clock import HandClock
from tests.support.ledger.arrivals import Arrivals
from tests.support.ledger.messages import Messages
from tests.support.ledger.words import Fault
from tests.support.memory_store import MemoryStore
from tests.support.soak import first_seed
from timeline.position import MessageId, at_of, id_position, id_text

from .hand import Audit, Hand, name_of

pytestmark = pytest.mark.short

START_MS = 1_800_000_890_000
SECOND, MINUTE, DAY = 1_000, 60_000, 86_400_000


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else RocksStore(tmp_path / "data")
    yield opened
    opened.close()


class Bench:
    """A server, one subscriber, and the account of what it got and when."""

    def __init__(self, store: Store, reached: Callable[["Bench"], None] = lambda bench: None) -> None:
        """`reached`: called between any two steps of the server."""
        self._reached = reached
        self.clock = HandClock(START_MS)
        self.messages = Messages(START_MS)
        self.messages.book.tell = fails
        self.audit = Audit(Arrivals(self.messages), "all")
        self.start(store, "#")

    def start(self, store: Store, *filters: str) -> None:
        self.hand = self.audit.hand = Hand(store, self.clock, reached=lambda point: self._reached(self))
        self.audit.connect(*filters)

    @property
    def got(self) -> list[str]:
        return [message.tag for message in self.audit.inbox.of]

    def put(self, tag: str, due_ms: int) -> None:
        message, names = self.messages.ask(tag, "a/b", due_ms), list[MessageId]()
        self.hand.put([("a/b", tag, due_ms)], names.extend)
        self.hand.round()
        self.messages.accepted(message, id_text(names[0]))
        self.audit.rest()

    def jump(self, by_ms: int) -> None:
        self.step(by_ms)
        self.audit.rest()

    def step(self, by_ms: int) -> None:
        """The clock jumps, and the server does not look yet."""
        self.clock.now_ms += by_ms
        self.audit.shows()

    def kill(self, store: MemoryStore, by_ms: int) -> None:
        """Nothing that is not durable is left; a start when the clock shows so much more or less."""
        store.crash(0)
        self.step(by_ms)
        self.start(store)

    def cancel(self, tag: str) -> bool:
        return self.audit.cancel(self.messages.by_tag[tag])

    def pending(self) -> list[str]:
        messages = self.messages.by_tag.items()
        return [tag for tag, one in messages if not self.audit.inbox.has(one) and not one.is_cancelled]

    def stalled(self) -> list[str]:
        """What should be out if the clock never was ahead of now. A small step back is waited out: T + 1."""
        tags = self.pending()
        return [
            tag for tag in tags if at_of(id_position(name_of(self.messages.by_tag[tag]))) <= self.clock.now_ms
        ]

    def faults(self) -> list[Fault]:
        """What has come is in order, and what is due is there."""
        self.audit.account.until_ms = self.clock.now_ms
        return self.audit.account.check()


def fails(fault: Fault) -> None:
    raise AssertionError(fault)


@pytest.mark.parametrize("step", [2, SECOND, MINUTE, DAY])
def test_back_and_forth(store: Store, step: int) -> None:
    """What was asked for after the step back is not early; what was asked for before is not stalled."""
    bench = Bench(store)
    bench.put("before", START_MS + step // 2)
    bench.put("beyond", START_MS + 2 * step)
    bench.jump(-step)
    assert bench.got == []
    due_ms = bench.clock.now_ms + step // 2
    bench.put("between", due_ms)
    if step > SECOND:
        assert bench.hand.core.opened.waiting.held == 1
    bench.jump(step // 2 - 1)
    assert bench.got == []
    bench.jump(1)
    if step > SECOND:
        assert bench.got == ["between"]
        assert bench.hand.core.opened.waiting.held == 0
    bench.jump(step)
    assert sorted(bench.got) == ["before", "between"]
    bench.jump(step + step // 2)
    assert sorted(bench.got) == ["before", "between", "beyond"]


@pytest.mark.parametrize("step", [2, SECOND, MINUTE, DAY])
def test_a_late_one_goes_at_once_while_the_clock_is_back(store: Store, step: int) -> None:
    bench = Bench(store)
    bench.jump(-step)
    bench.put("late", bench.clock.now_ms - 1)
    bench.put("now", 0)
    assert bench.got == ["late", "now"]


@pytest.mark.parametrize("step", [2, SECOND, MINUTE, DAY, 60 * DAY])
def test_a_jump_ahead_passes_nothing_over(store: Store, step: int) -> None:
    bench = Bench(store)
    dues = [START_MS + step * part // 10 for part in range(1, 12)]
    for index, due_ms in enumerate(dues):
        bench.put(str(index), due_ms)
    bench.jump(step)
    assert bench.got == [str(index) for index, due_ms in enumerate(dues) if due_ms <= bench.clock.now_ms]
    bench.jump(step)
    assert bench.got == [str(index) for index in range(11)]


def test_held_messages_come_in_order_and_can_be_cancelled_and_moved(store: Store) -> None:
    bench = Bench(store)
    opened = bench.hand.core.opened
    bench.jump(-DAY)
    base_ms = bench.clock.now_ms
    for index in range(6):
        bench.put(str(index), base_ms + (6 - index) * MINUTE)
    assert opened.waiting.held == 6
    assert bench.cancel("1")
    assert bench.audit.move(bench.messages.by_tag["3"], base_ms + 30_000)
    for _ in range(7):
        bench.jump(MINUTE)
    assert bench.got == ["3", "5", "4", "2", "0"]
    assert opened.waiting.held == 0
    assert opened.waiting.pending == 0


def test_held_messages_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "data"
    store = RocksStore(path)
    bench = Bench(store)
    bench.jump(-DAY)
    bench.put("held", bench.clock.now_ms + MINUTE)
    store.close()
    again = RocksStore(path)
    clock = HandClock(bench.clock.now_ms)
    got: list[str] = []
    hand = Hand(again, clock, reached=lambda point: None)
    hand.connect("all", lambda message, *_: got.append(message.record.payload.decode()), "#")
    hand.rest()
    assert (got, hand.core.opened.waiting.held) == ([], 1)
    clock.now_ms += MINUTE - 1
    hand.rest()
    assert got == []
    clock.now_ms += 1
    hand.rest()
    assert got == ["held"]
    again.close()


def test_random_jumps(store: Store) -> None:
    """Many jumps of all sizes with puts between; then the clock goes on to the last due."""
    seed = first_seed()
    print(f"seed {seed}")
    chance = random.Random(seed)
    bench = Bench(store)
    for index in range(150):
        bench.put(str(index), bench.clock.now_ms + chance.choice((-1, 0, 1, 3, 700, 5_000, 70_000, DAY)))
        bench.jump(chance.choice((0, 1, 2, -2, 900, -900, -1_100, MINUTE, -MINUTE, DAY, -DAY)))
        if bench.clock.now_ms == bench.messages.clock.top:
            assert bench.stalled() == []
    last = max(message.due for message in bench.messages.by_tag.values())
    bench.jump(max(0, last - bench.clock.now_ms))
    bench.jump(SECOND + 1)
    assert bench.pending() == []
    assert bench.hand.core.opened.waiting.pending == 0


def test_two_milliseconds_back_and_forth_between_any_two_steps(store: Store) -> None:
    """Also between the deciding of a request and its sync, and between two groups."""
    seed = first_seed()
    print(f"seed {seed}")
    chance = random.Random(seed)
    bench = Bench(store, lambda bench: bench.step(chance.choice((-2, -2, 0, 2, 2, 3))))
    for index in range(80):
        bench.put(str(index), bench.clock.now_ms + chance.choice((-1, 0, 1, 2, 3, 5)))
    bench.jump(SECOND)
    bench.jump(SECOND)
    assert bench.pending() == []
    assert bench.faults() == []
    assert bench.hand.core.opened.waiting.held == 0, "steps as small are waited out"


@pytest.mark.parametrize("rate", [0.1, 0.9, 1.1, 10.0])
def test_a_clock_that_runs_fast_or_slow(store: Store, rate: float) -> None:
    """Wall time is what counts, however much monotonic time passes beside it."""
    bench = Bench(store)
    for index in range(20):
        bench.put(str(index), START_MS + 500 * (index + 1))
    while bench.clock.now_ms < START_MS + 10_500:
        bench.step(int(250 * rate))
        bench.hand.round()  # 250 ms of monotonic time
        bench.audit.rest()
        due = sum(message.due <= bench.clock.now_ms for message in bench.messages.by_tag.values())
        assert bench.got == [str(index) for index in range(due)]
    assert bench.pending() == []


def test_a_clock_that_stands_still(store: Store) -> None:
    """What is due goes out, what is not does not; nothing waits for the clock but that."""
    bench = Bench(store)
    bench.put("later", START_MS + 1)
    for index in range(50):
        bench.put(str(index), START_MS - index % 2)
        bench.hand.round()
    assert bench.got == [str(index) for index in range(50)]
    assert bench.faults() == []
    bench.put("gone", START_MS + 2)
    assert bench.cancel("gone")
    assert not bench.cancel("7")
    bench.jump(1)
    assert bench.got[50:] == ["later"]
    bench.jump(DAY)
    assert bench.got[50:] == ["later"]


@pytest.mark.parametrize("by_ms", [-DAY, -MINUTE, -SECOND, -2, 0, 2, MINUTE, DAY])
def test_killed_and_started_when_the_clock_was_set(by_ms: int) -> None:
    """Wherever it stands then: what may have been sent cannot be taken back, all else can, and all comes."""
    store = MemoryStore()
    bench = Bench(store)
    for index in range(10):
        bench.put(str(index), START_MS + 500 * (index + 1))
    bench.put("far", START_MS + 3 * DAY)
    bench.put("taken back", START_MS + 3 * DAY)
    bench.jump(2_500)
    assert bench.got == ["0", "1", "2", "3", "4"]
    bench.kill(store, by_ms)
    for tag in bench.got[:5]:
        assert not bench.cancel(tag)
    assert bench.cancel("taken back")
    bench.put("new", bench.clock.now_ms + 100)
    bench.jump(3 * DAY + max(0, -by_ms))
    assert sorted(bench.got) == sorted([*map(str, range(10)), "far", "new"])
