"""Where a server has each message of a group."""

from server.core import Core
from server.delivery.shared import Group
from shards import delivery_rows
from shards.record import decode, is_stub
from timeline.filters import matches
from timeline.position import END, Position


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
