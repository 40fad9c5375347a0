"""The life of a delivery as docs/places.md shows it, drawn from the table of deliveries.

Each arrow is what `decide` says of a group's delivery in that state. States and words are those of users:
`waiting` has what is unread, and what has come back and is in nobody's hands.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from timeline.deliveries import NEVER, CannotBe, decide
from timeline.delivery_rows import Case, DeliveryRow, Effect, Event, Out, Seen, State, Terms, state_of
from timeline.position import position

AT = position(1_000_000, 1)
ROW = DeliveryRow(State.WAITING, AT, attempts=1, counted=1)
E = Event
Where = tuple[DeliveryRow | None, Seen]
UNREAD, IDLE = (None, Seen(is_ahead=True)), (None, Seen(Out(is_held=False)))
SHOWN: dict[str, list[Where]] = {
    "waiting": [UNREAD, IDLE],
    "in_flight": [(None, Seen(Out())), (None, Seen(Out(is_leased=True))), (None, Seen(Out(is_handed=True)))],
    "retry": [(ROW, Seen())],
    "withheld": [(ROW._replace(state=State.WITHHELD), Seen())],
    "dead": [(ROW._replace(state=State.DEAD), Seen())],
    "dropped": [(ROW._replace(state=State.DROPPED), Seen())],
    "done": [(None, Seen())],
}
"""The states of docs/http.md, and all that is shown so."""
BY_HOLDERS = {E.ACK, E.NACK, E.LAPSE, E.LOST, E.RETURN, E.PUT_BACK, E.KILL, E.TOO_LARGE, E.INHERIT}
"""Of what is in flight alone, ..."""
BY_GIVER = {E.GIVE, E.PUT_OFF, E.WITHHOLD, E.EXPIRE, E.BAR, E.UNREADABLE}
"""... and of what is in nobody's hands."""


@dataclass(frozen=True)
class Way:
    """Something that happens, in the words of the page."""

    word: str
    events: tuple[Event, ...]
    case: Mapping[str, Any] = field(default_factory=dict)
    max_attempts: int = 0


WAYS = [
    Way("given", (E.GIVE,)),
    Way("ack", (E.ACK,)),
    Way("late ack", (E.LATE_ACK,)),
    Way("too large", (E.TOO_LARGE,)),
    Way("nack", (E.NACK,)),
    Way("lease over", (E.LAPSE,)),
    Way("connection lost", (E.LOST,)),
    Way("returned", (E.RETURN, E.PUT_BACK)),
    Way("server stopped or killed", (E.KILL,)),
    Way("reject", (E.NACK,), {"delay_ms": NEVER}),
    Way("no try left", (E.GIVE, E.NACK, E.LAPSE, E.LOST), max_attempts=1),
    Way("no member may receive it", (E.PUT_OFF,)),
    Way("sender barred", (E.WITHHOLD,)),
    Way("sender allowed", (E.OWNER_BACK,)),
    Way("expired", (E.EXPIRE,)),
    Way("forbidden", (E.BAR,)),
    Way("unreadable", (E.UNREADABLE,)),
    Way("try", (E.TRY,)),
    Way("bury", (E.BURY,)),
    Way("drop", (E.DROP,)),
    Way("requeue", (E.REQUEUE,)),
    Way("requeue from another place", (E.COME, E.JOIN)),
    Way("requeue to another place", (E.SEND_AWAY,)),
    Way("to another group of the name", (E.MOVE,)),
    Way("skip", (E.SKIP,)),
    Way("skip with drop", (E.SKIP,), {"is_dead": False}),
    Way("group deleted", (E.END_OF_PLACE,)),
    Way("group deleted with drop", (E.END_OF_PLACE,), {"is_dead": False}),
    Way("group deleted, its session keeps it", (E.INHERIT,)),
    Way("retention", (E.SLICE_GOES, E.EVICT)),
    Way("key released", (E.RELEASE,)),
]
"""Every event of the table, in the order of the page. A replay is none: it makes rows say nothing."""
REPLAY, WIDTH = "replay", 66


def shown(row: DeliveryRow | None, seen: Seen) -> str:
    """How users see a group's delivery."""
    state = state_of(row, seen)
    if seen.out is not None and state in (State.OUT, State.LEASED, State.HANDED):
        return "in_flight" if seen.out.is_held else "waiting"
    names = {State.UNREAD: "waiting", State.WAITING: "retry"}
    return names.get(state, state.name.lower())


def follows(where: Where, way: Way, event: Event) -> str:
    """What becomes of it, as users see it; empty: it stays, or that cannot be, or is refused."""
    row, seen = where
    is_held = seen.out is not None and seen.out.is_held
    if event in (BY_GIVER if is_held else BY_HOLDERS):
        return ""
    try:
        fate = decide(row, seen, event, Case(AT, row=ROW, **way.case), Terms(max_attempts=way.max_attempts))
    except CannotBe:
        return ""
    if (fate.row, fate.out) == (row, seen.out) or Effect.REFUSED in fate.effects:
        return ""
    return "dropped" if Effect.COUNT_DROPPED in fate.effects else shown(fate.row, Seen(fate.out))


def arrows() -> dict[tuple[str, str], list[str]]:
    """(from, to) -> what leads there. Of an event that has two words the first one is told."""
    found: dict[tuple[str, str], list[str]] = {}
    for start, theirs in SHOWN.items():
        met = set[tuple[Event, str]]()
        for way in WAYS:
            ends = {(event, follows(one, way, event)) for one in theirs for event in way.events} - met
            met |= ends
            for end in [one for one in SHOWN if one != start and one in {end for _, end in ends}]:
                found.setdefault((start, end), []).append(way.word)
        row, seen = theirs[0]
        if row is not None or seen == Seen():
            read_again = shown(row, Seen(is_ahead=True, replay=1))
            found.setdefault((start, read_again), []).append(REPLAY)
    return found


def _lines(words: list[str]) -> Iterator[str]:
    line = ""
    for word in words:
        if len(line) + len(word) + 2 > WIDTH:
            yield f"{line},"
            line = ""
        line = f"{line}, {word}" if line else word
    yield line


def picture() -> str:
    """All arrows, by the state that they begin at."""
    lines: list[str] = []
    last = ""
    for (start, end), words in arrows().items():
        lines += [""] if last not in ("", start) else []
        *upper, lower = _lines(words)
        drawn = [*upper, f"{lower} {'─' * (WIDTH - len(lower))}> {end}"]
        lines += [f"{start if start != last and not n else '':<11}{line}" for n, line in enumerate(drawn)]
        last = start
    return "\n".join(["```text", *lines, "```"])
