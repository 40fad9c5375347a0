"""Writes the SDK's values, sdk/fasti/answers.py, from the types of the server's answers. Part of `generate`.

Each value is a frozen dataclass with the members of the answer. `fasti.values` reads it by their types. For

    class Fire(Body):
        at: Instant
        local: str
        note: str | UnsetType = UNSET

and `Value("Fire", "at")` it writes

    @dataclass(frozen=True, slots=True)
    class Fire(Answer):
        at: datetime
        local: str = ""
        note: str | None = None
        raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

Instants become datetimes, lists tuples, and objects values, or mappings if the SDK has no value for them.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, get_args, get_origin, get_type_hints

from msgspec import UnsetType

from server.cluster import view
from server.http.values import shapes

CHARS_MAX = 103
SPANS = {"bucket_s": "bucket"}
"""Seconds -> name of the timedelta."""
NAMES = {"from": "start", "to": "end", **SPANS}
"""Names of members that have another one in the SDK."""
EMPTY = {"str": "", "bool": False}
"""What is never None, by its type."""


class Value(NamedTuple):
    """How an answer becomes a value of the SDK.

    `members`: those that need more than their type. `id`: without it there is no value. `lag=0`: never None.
    `next_id=next.id`: an attribute that is a member of a member. `-token`: left out. `base`: a class of
    `fasti.values`; empty: it is only read within another. `has_raw`: whether it keeps the server's object.
    """

    shape: str
    members: str
    base: str = "Answer"
    has_raw: bool = True


SENT = "-payload -encoding -headers -cancelled_at -withheld_by -outcome"
"""Members that `values.Content` reads."""
KEPT = f"id topic group attempts reason {SENT} -retain -late -expires_in -local -publisher"
RARE = "-position -lag_messages_is_exact -keep -result_ttl -alerts"
"""Members of places that `raw` has."""
VALUES = {
    "Info": Value("Info", "now node=0 clock=system build=pure"),
    "Shard": Value("Shard", "shard count live bytes"),
    "Slice": Value("SliceDetail", "start end generation count live bytes", "Pieces"),
    "Session": Value("Session", "client_id -expiry_s -read_position"),
    "ClusterNode": Value("NodeRow", "node epoch=0 applied=0"),
    "ClusterState": Value(
        "View",
        "epoch=0 applied=0 takeovers=0 leader=leader.node wants_retime=tzdata.retime -log -tzdata",
    ),
    "Try": Value("Try", "at", has_raw=False),
    "DeadLetter": Value("DeadLetter", f"{KEPT} died_at", "Content"),
    "WaitingRetry": Value("WaitingRetry", f"{KEPT} retry_at", "Content"),
    "Failing": Value("Failing", "share of", "", has_raw=False),
    "Endpoint": Value(
        "Endpoint",
        f"name url {RARE} -delivered -failed -lag_seconds -created_at -changed_at -left_at -last_answers",
    ),
    "Undone": Value("Undone", "lag=0 in_flight=0 retries=0", "Amount", has_raw=False),
    "Group": Value("Group", f"name filter state in_flight=0 {RARE}"),
    "OrderingKey": Value("GroupKey", "key lag=0 in_flight=0"),
    "Skipped": Value("Skipped", "from to undone"),
    "Job": Value(
        "JobView",
        "id state detail= done=progress.done total=progress.total -progress -token -lease_s -checkpoint",
        "Work",
    ),
    "Fire": Value("Fire", "at"),
    "Silence": Value("Silence", "until why", has_raw=False),
    "Schedule": Value("Schedule", f"name topic= count=0 next_id=next.id {SENT}", "Content"),
    "Bucket": Value("Bucket", "at count", has_raw=False),
    "Density": Value("Density", "from to bucket_s total"),
    "BulkResult": Value("KeptChanged", "matched changed", has_raw=False),
    "Claims": Value("Claims", "groups endpoints sessions", has_raw=False),
    "Upserted": Value("Upserted", "id state deliver_at changed", has_raw=False),
    "Why": Value("Why", "", has_raw=False),
    "Handling": Value("Delivery", "state reason=", has_raw=False),
}
"""By name in the SDK."""
ENTRY = """`group`: the group or client id; `attempts`: all deliveries to it. `subscription`:
    `$share/{group}/{filter}` of a group; None: a session. `reason`: why the last delivery failed; `tries`:
    the last ones, at most 20."""
MEANINGS = {
    "Info": """`GET /v1/info`. `mqtt` lists the listeners: `{"transport", "host", "port", "url"}`.

    `build`: "compiled" where the server runs compiled modules, else "pure".""",
    "Shard": """A capped run of messages inside a slice; `structure` says which topics are in it.

    `cap`: maximum messages, `cap_bytes`: maximum bytes; `sealed`: it takes no more.""",
    "Slice": """A span of due time [start, end). `live` leaves out cancelled and moved messages, `count`
    does not.

    `shards` is filled by `get`, not by `list`; `shard_count` by both.""",
    "Session": "A subscriber as the server knows it: where it has read to, and how far that is behind.",
    "ClusterNode": """One of the nodes, as the leader heard of it `heard_ms` ago (None: never).

    `state` is leader, follower or resync. `applied`: the log record up to which its disk is complete;
    `lag`: number of records that it is behind, None if unknown.""",
    "ClusterState": """`GET /v1/cluster`: the state of the node that answered, and what it knows about the
    others.

    `leader`: the leader's name, None if unknown. `why`: what is wrong with the node, empty if nothing.
    `wants_retime`: the node has another tzdata than the one used for due times, and recomputes them when it
    takes the lead.""",
    "DeadLetter": f"A message that was given up at `died_at`.\n\n    {ENTRY}",
    "WaitingRetry": f"A message that will be sent again at `retry_at`, to it alone.\n\n    {ENTRY}",
    "Endpoint": """An endpoint as the server knows it. `state`: active or paused; `reason`: why the server
    has paused it.

    `headers`: their names. `rate`: messages a second; 0: no limit. `undone`, `incarnation` and `expiry`: as
    of a `Group`.""",
    "Undone": """Unfinished messages of a place.

    `lag`: due and not read; `in_flight`: sent or leased, and not acked; `retries`: waiting for their next
    try, the first at `next_retry_at`. `oldest_at`: due of the oldest of all these.""",
    "Group": """A group as the server knows it. `state`: active or paused; `members`: its sessions there
    now.

    `undone`: what it has not finished. `incarnation`: which one of that name it is, from 1. `expiry`: how
    long it stays with nobody there, None: until it is deleted. Other durations are in seconds.""",
    "Skipped": "A place was moved forward from `start` to `end`; `undone`: its unfinished messages before.",
    "Job": """`kind`: split or expire. `done` of `total`: progress, if reported; `detail`: why it was
    aborted.

    A split has `slice`, an expiry `slices`.""",
    "Schedule": """A schedule as the server knows it. `state`: active, paused, finished, or stopped
    (`reason`: why it cannot go on); `count`: messages so far.

    It fires by one of `cron`, `every` (as it was given: "PT15M", 90) and `rrule`, in `timezone`. `last`:
    the last fire; None: nothing yet, or the server does not tell. `next_id`: of the pending message of the
    next fire. `silent`: the clock was ahead and has sent the fires before `next`; `resume(name,
    from_="now")` ends that.""",
    "Bucket": "Number of messages pending from `at` until the next bucket.",
    "Density": "Pending messages per bucket, in order of time.",
    "BulkResult": "`matched`: messages that were selected; `changed`: those of them that were changed.",
    "Upserted": """What `ByKey.upsert` has left under the key.

    `id` None: there is no message, and the server remembers the version. `changed`: whether the call has
    made, changed or cancelled the message. False: its version was not higher.""",
    "Handling": """Delivery state of a dispatched message in one group (`group`, `filter`), or in one
    `session`.

    `state`: "in_flight" (until `lease_until`, if it is leased), "withheld" (its sender may not send it now:
    `withheld_by`), "waiting" (not read yet), "retry" (next try at `retry_at`), "dead", "dropped" (its retry
    was dropped), or "done" (nothing is left). `attempts`: deliveries so far, None if they are no longer
    known; `tries`: the last ones, at most 20. `reason`: why the last one failed, "" if unknown.
    `progress`: how far its worker says that it is.""",
}
"""What the SDK says of a value in place of the server's text."""


class Member(NamedTuple):
    """A member of an answer. `kinds`: its types but for null."""

    name: str
    kinds: tuple[Any, ...]
    may_be_none: bool


def members(shape: type) -> Iterator[Member]:
    """The members of an answer: here alone is known how one is declared that may be absent."""
    hints = get_type_hints(shape, include_extras=True)
    encoded = dict(
        zip(
            getattr(shape, "__struct_fields__", ()),
            getattr(shape, "__struct_encode_fields__", ()),
            strict=True,
        )
    )
    for name, hint in hints.items():
        is_rare = get_origin(hint) is NotRequired
        kinds = kinds_of(get_args(hint)[0] if is_rare else hint)
        known = tuple(kind for kind in kinds if kind not in (NoneType, UnsetType))
        yield Member(encoded.get(name, name), known, is_rare or len(known) < len(kinds))


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types of a union, without what describes them."""
    if get_origin(hint) is Annotated:
        schema = [each.extra_json_schema or {} for each in hint.__metadata__]
        is_instant = any(each.get("format") == "date-time" for each in schema)
        return ("instant",) if is_instant else kinds_of(hint.__origin__)
    is_union = len(get_args(hint)) > 1 and get_origin(hint) not in (Literal, dict, tuple)
    return tuple(kind for each in get_args(hint) for kind in kinds_of(each)) if is_union else (hint,)


def shape_of(name: str) -> type:
    found: type = (vars(shapes) | vars(view))[VALUES[name].shape]
    return found


SHAPES = {shape_of(name): name for name in VALUES}


class Attribute(NamedTuple):
    """One of the value: its type, its default as written (empty: it is needed), and where it is read."""

    name: str
    kind: str
    default: str
    place: str


def attributes(value: Value, shape: type) -> Iterator[Attribute]:
    """Those of a value, in the order of its constructor."""
    words = [word.partition("=") for word in value.members.split()]
    needs = [name for name, equals, _ in words if not equals and name[0] != "-"]
    texts = {name: text for name, equals, text in words if equals}
    within = {name: text.split(".") for name, text in texts.items() if "." in text}
    left = {*needs, *within, *(name[1:] for name, _, _ in words)}
    known = {each.name: each for each in members(shape)}
    for name in needs:
        kind = kind_of(known[name])
        kind = f"{kind} | None" if known[name].may_be_none else kind
        yield Attribute(NAMES.get(name, name), kind, "", name)
    for name, member in known.items():
        if name not in left:
            yield attribute(member, name, texts.get(name))
    for name, (outer, inner) in within.items():
        (found,) = (each for each in members(known[outer].kinds[0]) if each.name == inner)
        found = found._replace(name=name, may_be_none=found.kinds != (bool,))
        yield attribute(found, f"{outer}.{inner}")
    if value.has_raw:
        yield Attribute("raw", "Mapping[str, Any]", "field(default_factory=dict, repr=False)", "raw")


def attribute(member: Member, place: str, text: str | None = None) -> Attribute:
    """One that may be missing. `text`: its default, if that is none of its type."""
    name, kind = NAMES.get(member.name, member.name), kind_of(member)
    if kind.startswith("tuple"):
        return Attribute(name, kind, "()", place)
    default = None if member.may_be_none else EMPTY.get(kind)
    if text is not None:
        default = 0 if text == "0" else text
    if default is None:
        return Attribute(name, f"{kind} | None", "None", place)
    return Attribute(name, kind, repr(default), place)


def kind_of(member: Member) -> str:
    """The type of an attribute."""
    if member.name in SPANS or Literal["never"] in member.kinds:
        return "timedelta"
    if len(member.kinds) > 1:
        return " | ".join(each.__name__ for each in member.kinds)
    (kind,) = member.kinds
    if kind == "instant":
        return "datetime"
    if name := SHAPES.get(kind):
        return name
    if get_origin(kind) is list:
        (item,) = kinds_of(get_args(kind)[0])
        return f"tuple[{SHAPES.get(item) or plain(item)}, ...]"
    if get_origin(kind) is Literal and member.may_be_none:
        return str(kind).removeprefix("typing.")
    return plain(kind)


def plain(kind: Any) -> str:
    """A type that is read as it comes."""
    if get_origin(kind) is Literal:
        return "str"
    if kind is Any:
        return "Any"
    return kind.__name__ if kind in (str, int, float, bool) else "Mapping[str, Any]"


def docstring(text: str) -> str:
    paragraphs = re.sub(r"\bnull\b", "None", inspect.cleandoc(text)).split("\n\n")
    lines = [line for each in paragraphs for line in ("", *textwrap.wrap(each, CHARS_MAX))][1:]
    written = "\n    ".join(['"""' + lines[0], *lines[1:], *[""] * (len(lines) > 1)])
    return re.sub(r" +$", "", written, flags=re.MULTILINE) + ('"""' if len(lines) == 1 else '    """')


def written() -> Iterator[str]:
    """The text of answers.py, but for its format."""
    yield "# Written by sdk/generate.py from the server's answers: do not edit.\n"
    yield '"""What the server answers, as values: one for each type of its API that the SDK hands out."""\n\n'
    yield "from __future__ import annotations\n\nfrom collections.abc import Mapping\n"
    yield "from dataclasses import dataclass, field\nfrom datetime import datetime, timedelta\n"
    yield "from typing import Any, ClassVar, Literal\n\n"
    yield "from .values import Amount, Answer, Content, Pieces, Work\n"
    for name, value in VALUES.items():
        shape, base = shape_of(name), f"({value.base})" if value.base else ""
        own = list(attributes(value, shape))
        places = {one.name: one.place for one in own if one.name != one.place}
        yield f"\n\n@dataclass(frozen=True, slots=True)\nclass {name}{base}:\n"
        yield f"    {docstring(MEANINGS.get(name) or shape.__doc__ or '')}\n\n"
        if places:
            yield f"    _PLACES: ClassVar = {places}\n"
        for one in own:
            yield f"    {one.name}: {one.kind}{f' = {one.default}' if one.default else ''}\n"
