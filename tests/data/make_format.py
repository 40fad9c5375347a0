"""Writes a data directory of this program's format: `python -m tests.data.make_format DIR`.

It has owners, a retry, a dead letter, a message that was dropped, and a group that nobody is in. One is kept
for each format that was ever released (format-1, ...), and never written again. Tests of this program's own
format make theirs. tests/shards/test_old_formats.py opens them all.
"""

import sys
from functools import partial
from pathlib import Path

from server.core import Core
from server.delivery.terms import Keeping
from server.engine.clock import SimulatedClock
from server.settings.reading import load
from shards.commit import Draft
from shards.deliveries import bury, drop, wait
from shards.fields import Record
from shards.record import encode
from shards.rocks import RocksStore
from tests.support.delivery_rows import failed
from timeline.position import id_position
from timeline.session import Subscription, Terms

NOW_MS = 1_800_000_000_000
TOPICS = (b"orders/17/paid", b"orders/18/paid", b"lights/hall")
OWNER = b"meter-7"


def make(path: Path) -> None:
    """A timeline with something in every table that this version writes."""
    store = RocksStore(path)
    clock = SimulatedClock(NOW_MS)
    core = Core(load(None, {}, {})[0], clock, store, wake=lambda: None, chance=lambda: 0.5)
    _rounds(core)
    subscriber = core.sessions.open("away", expiry_s=3_600, window=10)
    core.subscriptions.subscribe(subscriber, Subscription("orders/#", 1, core.horizon.position), None)
    _ask(core, lambda commit: core.cursors.store(commit, subscriber))
    terms, keeping = Terms(30_000, 5, (1_000, 5_000)), Keeping(7_200, 10.0)
    _ask(core, lambda commit: core.groups.make(commit, "$share/workers/orders/#", terms, keeping))
    ids = []
    for index in range(30):
        topic, due_ms = TOPICS[index % 3], NOW_MS + 1_000 * (index - 5)
        record = Record(
            topic,
            b"payload %d" % index,
            due_ms,
            1,
            key=b"k%015d" % index,
            retain=index == 20,
            owner=b"" if index % 3 else OWNER,
        )
        draft = Draft(due_ms, topic, encode(record), record.key, b"f" * 16)
        _ask(core, lambda commit, draft=draft: ids.extend(commit.put([draft])))  # type: ignore[misc]
    _ask(core, lambda commit: commit.cancel(ids[25]))
    _ask(core, lambda commit: commit.move(ids[26], NOW_MS + 86_400_000))
    clock.now_ms = NOW_MS + 16_000
    _rounds(core)
    clock.now_ms = NOW_MS + 15_000
    draft = Draft(NOW_MS + 15_500, b"held", encode(Record(b"held", b"not yet", NOW_MS + 15_500)))
    core.horizon.observe(NOW_MS + 20_000)
    _ask(core, lambda commit: ids.extend(commit.put([draft])))
    first = encode(Record(TOPICS[0], b"payload 0", owner=OWNER))
    away = partial(failed, addressee="away", incarnation=subscriber.incarnation)
    retry = away(id_position(ids[0]), first, id=ids[0], attempts=3)
    _ask(core, lambda commit: wait(commit, retry, NOW_MS + 86_400_000, is_owed=True))
    dropped = away(id_position(ids[2]), first, id=ids[2])
    _ask(core, lambda commit: drop(commit, dropped))
    given_up = encode(Record(TOPICS[1], b"payload 1"))
    letter = away(id_position(ids[1]), given_up, id=ids[1], attempts=4)
    _ask(core, lambda commit: bury(commit, letter, max_messages=9, max_bytes=1 << 20))
    core.cursors.recover()
    _ask(core, lambda commit: None)
    (path / "ids").write_text("\n".join(f"{name:032x}" for name in ids) + "\n")
    store.close()


def _ask(core: Core, decide: object) -> None:
    core.writer.submit(decide, _fail_on_error)  # type: ignore[arg-type]
    _rounds(core)


def _fail_on_error(answer: object) -> None:
    if isinstance(answer, Exception):
        raise answer


def _rounds(core: Core, count: int = 6) -> None:
    for _ in range(count):
        core.heartbeat()
        if core.writer.compose() is not None:
            core.opened.store.flush()
            core.writer.settle()
        core.dispatch.turn()
        if core.loader.is_behind:
            core.loader.step()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
