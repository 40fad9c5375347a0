"""Writes the SDK's values, sdk/fasti/answers.py, from the types of the server's answers. Part of `generate`.

Each value is a frozen dataclass with the members of the answer and the reading of it. For

    class Fire(TypedDict):
        at: Instant
        local: str
        note: NotRequired[str]

and `Value(shapes.Fire, "at")` it writes

    @dataclass(frozen=True, slots=True)
    class Fire:
        at: datetime
        local: str = ""
        note: str | None = None
        raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

        @classmethod
        def of(cls, said: Json) -> Self:
            return cls(parse_instant(said["at"]), said.get("local") or "", said.get("note"), said)

Instants become datetimes, lists tuples, and objects values, or mappings if the SDK has no value for them.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, get_args, get_origin, get_type_hints

from server.cluster import view
from server.http.values import shapes

CHARS_MAX = 103
SPANS = {"bucket_s": "bucket"}
"""Seconds -> name of the timedelta."""
NAMES = {"from": "start", "to": "end", **SPANS}
"""Names of members that have another one in the SDK."""
SENT = "-payload -encoding -headers"
"""Members that `values.Content` reads."""
RARE = "-retain -late -expires_in -local -publisher -cancelled_at"
"""Members of messages that nobody asks of a dead letter or a retry: `raw` has them."""


class Value(NamedTuple):
    """How an answer becomes a value of the SDK.

    `members`: those that need more than their type. `id`: without it there is no value. `lag=0`: never None.
    `next_id=next.id`: an attribute that is a member of a member. `-token`: left out.
    `base`: a class of `values`. `is_part`: of other values, without `raw`. `meaning`: in place of the
    server's text, where the SDK has to say more.
    """

    shape: type
    members: str
    base: str = ""
    is_part: bool = False
    meaning: str = ""

    @property
    def needs(self) -> list[str]:
        return [each for each in self.members.split() if "=" not in each and each[0] != "-"]

    @property
    def leaves(self) -> set[str]:
        return {*self.within, *(each[1:] for each in self.members.split() if each[0] == "-")}

    @property
    def defaults(self) -> dict[str, Any]:
        return {name: 0 if text == "0" else text for name, text in self._given() if "." not in text}

    @property
    def within(self) -> dict[str, str]:
        return {name: text for name, text in self._given() if "." in text}

    def _given(self) -> Iterator[tuple[str, str]]:
        for each in self.members.split():
            name, equals, text = each.partition("=")
            if equals:
                yield name, text


VALUES = {
    "Info": Value(shapes.Info, "now node=0 clock=system build=pure"),
    "Shard": Value(
        shapes.Shard,
        "shard count live bytes",
        meaning="""A capped run of messages inside a slice; `structure` says which topics are in it.

        `cap`: maximum messages, `cap_bytes`: maximum bytes; `sealed`: it takes no more.""",
    ),
    "Slice": Value(
        shapes.SliceDetail,
        "start end generation count live bytes",
        "Pieces",
        meaning="""A span of due time [start, end). `live` leaves out cancelled and moved messages, `count`
        does not.

        `shards` is filled by `get`, not by `list`; `shard_count` by both.""",
    ),
    "Session": Value(shapes.Session, "client_id -expiry_s -read_position"),
    "ClusterNode": Value(
        view.NodeRow,
        "node epoch=0 applied=0",
        meaning="""One of the nodes, as the leader heard of it `heard_ms` ago (None: never).

        `state` is leader, follower or resync. `applied`: the log record up to which its disk is complete;
        `lag`: number of records that it is behind, None if unknown.""",
    ),
    "ClusterState": Value(
        view.View,
        "epoch=0 applied=0 takeovers=0 leader=leader.node wants_retime=tzdata.retime -log -tzdata",
        meaning="""`GET /v1/cluster`: the state of the node that answered, and what it knows about the others.

        `leader`: the leader's name, None if unknown. `why`: what is wrong with the node, empty if nothing.
        `wants_retime`: the node has another tzdata than the one used for due times, and recomputes them when
        it takes the lead.""",
    ),
    "Try": Value(shapes.Try, "at", is_part=True),
    "DeadLetter": Value(
        shapes.DeadLetter, f"id topic group attempts reason died_at {SENT} {RARE}", "Content"
    ),
    "WaitingRetry": Value(
        shapes.WaitingRetry, f"id topic group attempts reason retry_at {SENT} {RARE}", "Content"
    ),
    "Failing": Value(shapes.Failing, "share of", is_part=True),
    "Endpoint": Value(shapes.Endpoint, "name url"),
    "Undone": Value(
        shapes.Undone,
        "lag=0 in_flight=0 retries=0",
        "Amount",
        is_part=True,
        meaning="""Unfinished messages of a place.

        `lag`: due and not read; `in_flight`: sent or leased, and not acked; `retries`: waiting for their next
        try, the first at `next_retry_at`. `oldest_at`: due of the oldest of all these.""",
    ),
    "Group": Value(
        shapes.Group,
        "name filter state in_flight=0",
        meaning="""A group as the server knows it. `state`: active or paused; `members`: its sessions there
        now.

        `undone`: what it has not finished. `incarnation`: which one of that name it is, from 1. `expiry`: how
        long it stays with nobody there, None: until it is deleted. Other durations are in seconds.""",
    ),
    "OrderingKey": Value(shapes.GroupKey, "key lag=0 in_flight=0"),
    "Skipped": Value(
        shapes.Skipped,
        "from to undone",
        meaning="A place was moved forward from `start` to `end`; `undone`: its unfinished messages before.",
    ),
    "Job": Value(
        shapes.JobView,
        "id state detail= done=progress.done total=progress.total -progress -token -lease_s -checkpoint",
        "Work",
        meaning="""`kind`: split or expire. `done` of `total`: progress, if reported; `detail`: why it was
        aborted.

        A split has `slice`, an expiry `slices`; an open job has a `checkpoint`, an ended one its end.""",
    ),
    "Fire": Value(shapes.Fire, "at"),
    "Silence": Value(shapes.Silence, "until why", is_part=True),
    "Schedule": Value(
        shapes.Schedule,
        f"name topic= count=0 next_id=next.id {SENT}",
        "Content",
        meaning="""A schedule as the server knows it. `state`: active, paused, finished, or stopped (`reason`:
        why it cannot go on); `count`: messages so far.

        It fires by one of `cron`, `every` (as it was given: "PT15M", 90) and `rrule`, in `timezone`. `last`:
        None: nothing yet. `next_id`: of the pending message of the next fire. `silent`: the clock was ahead
        and has sent the fires before `next`; `resume(name, from_="now")` ends that.""",
    ),
    "Bucket": Value(
        shapes.Bucket,
        "at count",
        is_part=True,
        meaning="Number of messages pending from `at` until the next bucket.",
    ),
    "Density": Value(
        shapes.Density, "from to bucket_s total", meaning="Pending messages per bucket, in order of time."
    ),
    "BulkResult": Value(
        shapes.KeptChanged,
        "matched changed",
        is_part=True,
        meaning="`matched`: messages that were selected; `changed`: those of them that were changed.",
    ),
    "Claims": Value(shapes.Claims, "groups endpoints sessions", is_part=True),
    "Upserted": Value(
        shapes.Upserted,
        "id state deliver_at changed",
        is_part=True,
        meaning="""What `ByKey.upsert` has left under the key. `id` None: there is no message, and the server
        remembers the version.

        `changed`: whether the call has made, changed or cancelled the message. False: its version was not
        higher.""",
    ),
    "Handling": Value(
        shapes.Delivery,
        "state reason=",
        is_part=True,
        meaning="""Delivery state of a dispatched message in one group (`group`, `filter`), or in one
        `session`.

        `state`: "in_flight" (until `lease_until`, if it is leased), "waiting" (not read yet), "retry" (next
        try at `retry_at`), "dead", "dropped" (its retry was dropped), or "done" (nothing is left).
        `attempts`: deliveries so far, None if they are no longer known; `tries`: the last ones, at most 20.
        `reason`: why the last one failed, "" if unknown.""",
    ),
}
"""By name in the SDK."""
SHAPES = {value.shape: name for name, value in VALUES.items()}
EMPTY = {"str": "", "bool": False}
"""What is never None, by its type."""


class Member(NamedTuple):
    """A member of an answer. `kinds`: its types but for null."""

    name: str
    kinds: tuple[Any, ...]
    may_be_none: bool


def members(shape: type) -> Iterator[Member]:
    """The members of an answer: here alone is known how its type is declared."""
    for name, hint in get_type_hints(shape, include_extras=True).items():
        is_rare = get_origin(hint) is NotRequired
        kinds = kinds_of(get_args(hint)[0] if is_rare else hint)
        yield Member(name, tuple(k for k in kinds if k is not NoneType), is_rare or NoneType in kinds)


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types of a union, without what describes them."""
    if get_origin(hint) is Annotated:
        schema = [each.extra_json_schema or {} for each in hint.__metadata__]
        is_instant = any(each.get("format") == "date-time" for each in schema)
        return ("instant",) if is_instant else kinds_of(hint.__origin__)
    is_union = len(get_args(hint)) > 1 and get_origin(hint) not in (Literal, dict, tuple)
    return tuple(kind for each in get_args(hint) for kind in kinds_of(each)) if is_union else (hint,)


class Attribute(NamedTuple):
    """One of the value: its type, how it is read, and its default as written; empty: it is needed."""

    name: str
    kind: str
    read: str
    default: str


def attribute(value: Value, member: Member, found: str = "") -> Attribute:
    """`found`: where the member is, if it is not one of the answer itself."""
    name = NAMES.get(member.name, member.name)
    if not found and member.name in value.needs:
        kind, read = reading(member, f'said["{member.name}"]', is_needed=True)
        return Attribute(name, f"{kind} | None" if member.may_be_none else kind, read, "")
    kind, read = reading(member, found or f'said.get("{member.name}")')
    if kind.startswith("tuple"):
        return Attribute(name, kind, read, "()")
    default = value.defaults.get(name, None if member.may_be_none else EMPTY.get(kind))
    if default is None:
        return Attribute(name, kind if kind == "Any" else f"{kind} | None", read, "None")
    return Attribute(name, kind, f"{read} or {default!r}", repr(default))


def reading(member: Member, found: str, *, is_needed: bool = False) -> tuple[str, str]:
    """The type of an attribute, and what reads it."""
    if member.name in SPANS:
        return "timedelta", f"timedelta(seconds={found})"
    if Literal["never"] in member.kinds:
        return "timedelta", f"kept_for({found})"
    if len(member.kinds) > 1:
        return " | ".join(each.__name__ for each in member.kinds), found
    (kind,) = member.kinds
    if kind == "instant":
        return "datetime", f"{'parse_instant' if is_needed and not member.may_be_none else 'parsed'}({found})"
    if name := SHAPES.get(kind):
        read = f"{name}.{reader(name)}"
        return name, f"{read}(object_of({found}))" if is_needed else f"optional({read}, {found})"
    if get_origin(kind) is list:
        (item,) = kinds_of(get_args(kind)[0])
        name = SHAPES.get(item)
        read = f"each({name}.{reader(name)}, {found})" if name else f"listed({found})"
        return f"tuple[{name or plain(item)}, ...]", read
    if get_origin(kind) is Literal and member.may_be_none:
        return str(kind).removeprefix("typing."), found
    return plain(kind), found


def reader(name: str) -> str:
    """The method that reads a value: `of`, if no member is called so."""
    return "read" if any(each.name == "of" for each in members(VALUES[name].shape)) else "of"


def plain(kind: Any) -> str:
    """A type that is read as it comes."""
    if get_origin(kind) is Literal:
        return "str"
    return kind.__name__ if kind in (str, int, float, bool) else "Any" if kind is Any else "Mapping[str, Any]"


def attributes(value: Value) -> Iterator[Attribute]:
    """Those of a value, in the order of its constructor."""
    known = {each.name: each for each in members(value.shape)}
    needed = [known[name] for name in value.needs]
    others = [each for each in known.values() if each not in needed and each.name not in value.leaves]
    yield from (attribute(value, each) for each in (*needed, *others))
    for name, path in value.within.items():
        outer, _, inner = path.partition(".")
        (shape,) = known[outer].kinds
        (found,) = (each for each in members(shape) if each.name == inner)
        rare = found._replace(name=name, may_be_none=found.kinds != (bool,))
        yield attribute(value, rare, f'inside(said.get("{outer}"), "{inner}")')
    if not value.is_part:
        yield Attribute("raw", "Mapping[str, Any]", "said", "field(default_factory=dict, repr=False)")


def docstring(value: Value) -> str:
    """What it means, and what its members mean."""
    own = inspect.cleandoc(value.meaning or value.shape.__doc__ or "")
    told = [own, *(each.__doc__ or "" for each in bases(value.shape) if not value.meaning)]
    paragraphs = re.sub(r"\bnull\b", "None", own).split("\n\n")
    paragraphs += [text[text.index("`") :] for text in told[1:] if "`" in text]
    lines = [line for text in paragraphs for line in ("", *textwrap.wrap(text, CHARS_MAX))][1:]
    text = "\n    ".join(['"""' + lines[0], *lines[1:], *[""] * (len(lines) > 1)])
    return re.sub(r" +$", "", text, flags=re.MULTILINE) + ('"""' if len(lines) == 1 else '    """')


def bases(shape: type) -> Iterator[type]:
    for base in getattr(shape, "__orig_bases__", shape.__bases__):
        if getattr(base, "__annotations__", None):
            yield base
            yield from bases(base)


def written() -> Iterator[str]:
    """The text of answers.py, but for its format."""
    yield '"""What the server answers, as values: one for each type of its API that the SDK hands out."""\n\n'
    yield "from __future__ import annotations\n\nfrom collections.abc import Mapping\n"
    yield "from dataclasses import dataclass, field\nfrom datetime import datetime, timedelta\n"
    yield "from typing import Any, Literal, Self\n\n"
    yield "from .values import Amount, Content, Pieces, Work, each, inside, kept_for, listed, object_of"
    yield ", optional\n"
    yield "from .wire import Json, parse_instant, parsed\n"
    for name, value in VALUES.items():
        own, base = list(attributes(value)), f"({value.base})" if value.base else ""
        yield f"\n\n@dataclass(frozen=True, slots=True)\nclass {name}{base}:\n    {docstring(value)}\n\n"
        for one in own:
            yield f"    {one.name}: {one.kind}{f' = {one.default}' if one.default else ''}\n"
        yield f"\n    @classmethod\n    def {reader(name)}(cls, said: Json) -> Self:\n        return cls(\n"
        yield from (f"            {one.name}={one.read},\n" for one in own)
        yield "        )\n"
