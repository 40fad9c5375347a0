"""Where a server has each message of a group, and what it keeps of those that are done."""

from server.core import Core
from server.delivery.shared import Group
from shards import delivery_rows
from shards.delivery_rows import Name
from shards.kept import result_of
from shards.record import decode, is_stub
from tests.support.kept import kept_of
from tests.support.ledger.ends import Shown
from timeline.delivery_rows import Keep
from timeline.filters import matches
from timeline.position import END, START, Position


def where(core: Core, group: Group) -> tuple[dict[str, list[str]], dict[str, int]]:
    """In which places each message is, by its payload, and after how many deliveries the dead ones died."""
    session, found, dead = group.session, dict[str, list[str]](), dict[str, int]()
    for flight in session.flights.values():
        message = core.sent.message(group, flight)
        assert message is not None
        found.setdefault(message.record.payload.decode(), []).append("in flight")
    text = group.text.split("/", 2)[2]
    read, order = session.read_at(core.horizon.position), session.order
    horizon = core.horizon.position
    first = Position(order.read_from(read) + 1)
    for place, _, value in core.reader.read(first, END):
        record = decode(value)
        payload = record.payload.decode()
        is_its = not is_stub(value) and place not in session.finished and matches(text, record.topic.decode())
        is_behind = order.is_behind(record.ordering_key, place)
        if is_its and place <= horizon and (place > read or (is_behind and payload not in found)):
            found.setdefault(payload, []).append("unread")
    for row in delivery_rows.waiting(core.opened.store):
        if row.is_of(session.client_id, group.incarnation) and row.root not in group.rows.out:
            found.setdefault(decode(row.record).payload.decode(), []).append("waits")
    for row in core.dead_letters.read():
        if row.is_of(session.client_id, group.incarnation):
            payload = decode(row.record).payload.decode()
            found.setdefault(payload, []).append("dead")
            dead[payload] = row.attempts
    return found, dead


def done(core: Core, group: Group) -> dict[str, Shown]:
    """What is kept of each message that is done, by its payload, also what the next cursor writes. What goes
    with that is not there any more."""
    store, whose, rows, found = core.opened.store, group.whose, group.rows, dict[str, Shown]()
    payloads = {root: decode(value).payload.decode() for root, _, value in core.reader.read(START, END)}
    for one in kept_of(store, whose):
        if one.root not in rows.over:
            tries = [(each.by, each.outcome) for each in one.tries]
            result = result_of(store, whose, one)
            assert one.good.outcome == "done"
            found[payloads[one.root]] = Shown(one.state.attempts, tries, one.good.by, result)
    for root, story in rows.ended.items():
        row = delivery_rows.stored(store, Name(whose, root)) if root in rows.out - rows.over else None
        tries = [(each.by, each.outcome) for each in [*(row.tries if row else ()), *story.tries]]
        attempts = story.attempts + (row.attempts if row else 0)
        is_kept = row is None or attempts > 1 or story.result is not None or group.keeping.keep is Keep.ALL
        if is_kept and not (root in rows.unsure and payloads[root] in found):
            found[payloads[root]] = Shown(attempts, tries, story.by, story.result)
    return found
