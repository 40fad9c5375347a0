"""Notes for the archive how a delivery has ended, as the table of its life says (shards/ended.py)."""

from msgspec.structs import replace

from shards import keys
from shards.commit import Commit
from shards.delivery_rows import DeliveryRow
from shards.ended import DEAD, DONE, DROPPED, EXPIRED, REQUEUED, Names, count, note, shown
from shards.tables import EndRow
from timeline.deliveries import EXPIRED as TIME_OVER
from timeline.delivery_rows import DeliveryRow as Life
from timeline.delivery_rows import Effect, Event, Fate, Seen, State, Try
from timeline.position import MessageId, Position

from ..place import Place

REQUEUES = (Event.REQUEUE, Event.COME, Event.SEND_AWAY)
NO_LIFE, NO_TRY = Life(State.DROPPED), Try(0, "", "", "")


def note_end(
    commit: Commit, row: DeliveryRow, life: Life | None, fate: Fate, event: Event, seen: Seen, why: str
) -> None:
    """In the writer: if it has ended, note that. `row` has its names; `life`: as it was before; `why`: as the
    event says."""
    end = _end_of(life, fate, event)
    if end and commit.open_batch.notes_ends:
        names, told = (row.addressee, row.group, row.incarnation), fate.row or life or NO_LIFE
        one = _row(names, end, told, keys.message(row.id))
        if end in (DROPPED, EXPIRED):
            one = replace(one, reason=told.reason if fate.row and end == EXPIRED else why or told.reason)
        if told is NO_LIFE and seen.out is not None:
            one = replace(one, attempts=seen.out.attempts)
        note(commit, row.whose, names, row.root, one)


def note_late_ack(
    commit: Commit,
    place: Place,
    root: Position,
    life: Life | None,
    fate: Fate,
    message: MessageId | None,
    shard: int,
) -> None:
    """In the writer: note that it is done. It has a row if it is kept, or was a dead letter: whoever has read
    that is to learn of it."""
    group = commit.open_batch
    if not group.notes_ends or Effect.CURSOR not in fate.effects:
        return
    told = fate.row or life
    if told is None or (fate.row is None and told.state is not State.DEAD):
        count(group, place.whose, place.names, DONE)
    else:
        named = b"" if message is None else keys.message(message)
        note(commit, place.whose, place.names, root, _row(place.names, DONE, told, named, shard))


def _row(names: Names, end: str, told: Life, message: bytes, shard: int = -1) -> EndRow:
    last = told.tries[-1] if told.tries else NO_TRY
    reason = last.reason if end == DONE else told.reason
    return EndRow(*shown(names), end, told.attempts, reason, last.by, last.held_ms, message, shard)


def _end_of(life: Life | None, fate: Fate, event: Event) -> str:
    """Empty: it has not ended."""
    if Effect.REFUSED in fate.effects:
        return ""
    if Effect.COUNT_DEAD in fate.effects:
        reason = "" if fate.row is None else fate.row.reason
        return EXPIRED if reason.partition(";")[0] == TIME_OVER else DEAD
    if Effect.COUNT_DROPPED in fate.effects:
        return EXPIRED if event is Event.EXPIRE else DROPPED
    return REQUEUED if life is not None and life.state is State.DEAD and event in REQUEUES else ""
