"""Types of single members, parameters and headers: texts and numbers on the wire.

`/openapi.json` is generated from these, through the types of bodies and answers and the parameters of routes.
The decoder never checks these descriptions: the parsers know more (31 February is not a day) and give better
errors, and a pattern would cost time for every message of a batch. Tests check that both agree.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta

from ...delivery.terms import ATTEMPTS_MAX, CONCURRENCY_MAX, RATE_MAX
from ...delivery.terms import OnDead as OnDeadWord
from ...settings.kinds import BACKOFF_STEPS_MAX

LIMIT_MAX = 1_000
LIMIT_DEFAULT = 100


def _meta(description: str = "", **schema: Any) -> Meta:
    return Meta(description=description or None, extra_json_schema=schema)


def named(name: str) -> Meta:
    """A component of its own in `/openapi.json` (schemas.py)."""
    return Meta(title=name)


# -- out

Id = Annotated[str, _meta("32 hex digits, sorted by time", pattern="^[0-9a-f]{32}$")]
Seq = Annotated[str, _meta(pattern="^[0-9a-f]{12}$")]
Cursor = Annotated[str, _meta("where the next page begins: `cursor` of the next call")]
ETag = Annotated[str, _meta("another one after each move", pattern='^"[0-9a-f]{32}"$')]
Location = Annotated[str, _meta("its new id", pattern="^/v1/")]
RetryAfter = Annotated[str, _meta("seconds", pattern="^[0-9]+$")]

# -- in

_DAY = r"(0[1-9]|1[0-2])-(0[1-9]|[12]\d)|(0[13-9]|1[0-2])-30|(0[13578]|1[02])-31"
_TIME = r"([01]\d|2[0-3]):[0-5]\d(:([0-5]\d|60)(\.\d{1,9})?)?"
_OFFSET = r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_PLACE = r"\[[A-Za-z0-9_+/-]+\]"
_ZONED = rf"^(19[7-9]\d|[2-9]\d{{3}})-({_DAY})[Tt ]{_TIME}({_OFFSET}({_PLACE})?|{_PLACE})$"
_N = r"\d{1,15}([.,]\d{1,9})?"
_SHORT = rf"(?=\d)({_N}w)?({_N}d)?({_N}h)?({_N}m(?!s))?({_N}s)?({_N}ms)?"
_PERIOD = rf"[Pp](?=\d|[Tt]\d)({_N}[Ww])?({_N}[Dd])?([Tt](?=\d)({_N}[Hh])?({_N}[Mm])?({_N}[Ss])?)?"
_BACK = rf"(\d{{1,15}}(\.\d{{1,9}})?|{_SHORT}|{_PERIOD})"
_SECONDS = {"minimum": 0, "exclusiveMaximum": 10**15}

When = Annotated[
    str,
    _meta(
        "RFC 3339 with an offset, or a local time with its zone: 2027-03-28T09:00[Europe/Bucharest]",
        anyOf=[{"format": "date-time"}, {"pattern": _ZONED}],
    ),
    named("When"),
]
_DelayText = Annotated[str, _meta(pattern=f"^{_BACK}$")]
_ShiftText = Annotated[str, _meta(pattern=f"^-?{_BACK}$")]
_Whole = Annotated[int, _meta(**_SECONDS)]
_Part = Annotated[float, _meta(**_SECONDS)]
Delay = Annotated[
    _DelayText | _Whole | _Part, _meta("ISO 8601 or short: PT15M, 15m, 90s; or seconds"), named("Delay")
]
Attempts = Annotated[int, _meta(minimum=0, maximum=ATTEMPTS_MAX)]
Rate = Annotated[float, _meta("messages a second; 0: any number", minimum=0, maximum=RATE_MAX)]
OnDead = Annotated[
    OnDeadWord, _meta("of a group that orders: after a dead letter its key goes on, or is held")
]
Concurrency = Annotated[int, _meta("messages at a time; 0: any number", minimum=0, maximum=CONCURRENCY_MAX)]
_RateText = Annotated[str, _meta(pattern=r"^\d{1,7}(\.\d{1,6})?(/[smh])?$")]
KeyRate = Annotated[
    _RateText | Rate, _meta("messages a second, or 100/m, 5/h; 0: any number"), named("KeyRate")
]
Backoff = Annotated[list[Delay], _meta(minItems=1, maxItems=BACKOFF_STEPS_MAX)]
_ExpiryText = Annotated[str, _meta(pattern=f"^({_BACK}|never)$")]
Expiry = Annotated[
    _ExpiryText | _Whole | _Part,
    _meta("never: it stays until it is deleted; else how long it stays unused"),
    named("Expiry"),
]
Keep = Annotated[
    Annotated[str, _meta(pattern=f"^({_BACK}|failed|all|none)$")] | _Whole | _Part,
    _meta("finished deliveries that keep their story: failed, all, none, or all for a duration"),
    named("Keep"),
]
Alerts = Annotated[str, _meta("endpoint; empty: none", pattern="^[A-Za-z0-9._-]{0,128}$")]
Shift = Annotated[_ShiftText | int | float, _meta("a delay, or one backwards: -PT15M, -900"), named("Shift")]
Point = Annotated[
    str,
    _meta(
        "RFC 3339 with an offset, or Unix ms: 0, or from 1973 on",
        anyOf=[{"format": "date-time"}, {"pattern": rf"{_ZONED}|^(0|[1-9]\d{{11,13}})$"}],
    ),
    named("Point"),
]
Since = Annotated[
    str,
    _meta(
        "RFC 3339 with an offset, or how far back: PT1H",
        anyOf=[{"format": "date-time"}, {"pattern": f"{_ZONED}|^{_BACK}$"}],
    ),
    named("Since"),
]
Topic = Annotated[
    str,
    _meta(
        "no wildcards, no control characters; what begins with $ is the server's",
        pattern="^[^$+#\\u0000-\\u001f\\u007f-\\u009f][^+#\\u0000-\\u001f\\u007f-\\u009f]*$",
    ),
]
Target = Annotated[
    str,
    _meta(
        "the name of an endpoint, or an http(s) URL",
        maxLength=2_048,
        pattern="^([A-Za-z0-9._-]{1,128}|[Hh][Tt][Tt][Pp][Ss]?://.+)$",
    ),
]
Filter = Annotated[str, _meta("MQTT topic filter: orders/#", minLength=1)]
Key = Annotated[str, _meta("1 to 256 printable characters", minLength=1, maxLength=256)]
OrderingKey = Annotated[
    str,
    _meta(
        "1 to 128 bytes of printable UTF-8: what the message belongs to",
        minLength=1,
        maxLength=128,
        pattern="^[^\\u0000-\\u001f\\u007f-\\u009f]*$",
    ),
]
KEPT, UNDONE = "kept", "pending"
"""How long a key is taken: as long as its message is kept, or until the message is no longer undone."""
KeyScope = Annotated[Literal["kept", "pending"], _meta(default=KEPT)]
_VersionNumber = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
VersionNumbers = Annotated[
    list[_VersionNumber],
    Meta(
        min_length=2,
        max_length=2,
        description="compared in order; not above the highest one: nothing changes",
    ),
]
ContentType = Annotated[str, _meta(minLength=1, maxLength=256)]
Tags = Annotated[str, _meta("ETags, or *")]
Name = Annotated[str, _meta(pattern="^[A-Za-z0-9._-]{1,128}$")]
GroupName = Annotated[
    str, _meta("of `$share/{group}/{filter}`", pattern="^[^/+#\\u0000-\\u001f\\u007f-\\u009f]+$")
]
Zone = Annotated[str, _meta("of the tz database: Europe/Bucharest", minLength=1, maxLength=255)]


NULL: dict[str, Any] = {"type": "null"}
GIVEN: dict[str, Any] = {"not": NULL}


def rules(*schemas: dict[str, Any]) -> Meta:
    """What is true of several members. It stands where generators don't look: they would make a type of each
    option."""
    return Meta(extra_json_schema={"if": {}, "then": {"allOf": list(schemas)}})


def only_one(*names: str) -> dict[str, Any]:
    """At most one of these members is not null."""
    others = [[other for other in names if other != name] for name in names]
    return {"anyOf": [{"properties": dict.fromkeys(rest, NULL)} for rest in others]}


def some_of(*names: str) -> dict[str, Any]:
    """At least one of these members is there and not null."""
    return {"anyOf": [{"required": [name], "properties": {name: GIVEN}} for name in names]}


def not_both(one: str, other: str) -> dict[str, Any]:
    """At most one of these two members is there."""
    return {"not": {"required": [one, other]}}


def without(*names: str) -> Meta:
    """The type has no such members here."""
    return Meta(extra_json_schema={"properties": dict.fromkeys(names, False)})


_ORDERED = {"required": ["order"], "properties": {"order": {"const": True}}}
_NO_LIMIT = {"enum": [0, None]}
_UNLIMITED = {"properties": {"concurrency": _NO_LIMIT, "rate": _NO_LIMIT}}
WITH_ORDER = {"anyOf": [{"properties": {"on_dead": NULL}}, _ORDERED]}
"""`on_dead` goes with `order`, ..."""
WITHOUT_ORDER = {"anyOf": [{"not": _ORDERED}, {"properties": {"per_key": {"anyOf": [NULL, _UNLIMITED]}}}]}
"""... and `per_key` does not."""

# -- parameters

Query = dict[str, Any]
"""Name -> type."""

PATH: Query = {
    "id": Id,
    "start": Point,
    "n": Annotated[str, _meta("shard number", pattern="^[0-9]{1,5}$")],
    "client_id": Annotated[str, _meta(minLength=1)],
    "name": Name,
    "group": GroupName,
    "key": Key,
    "ordering_key": OrderingKey,
    "file": Annotated[str, _meta(minLength=1)],
}
PATH_EXAMPLES = {
    "id": "019ab3c5d2e000000010000000000001",
    "start": "2030-01-01T00:00:00Z",
    "n": "0",
    "client_id": "meter-7",
    "name": "nightly",
    "group": "printers",
    "key": "order-17",
    "ordering_key": "customer-17",
    "file": "main.js",
}
FLAG = Annotated[bool, _meta(default=False)]
LIMIT = Annotated[int, _meta(minimum=1, maximum=LIMIT_MAX, default=LIMIT_DEFAULT)]
PAGED: Query = {"limit": LIMIT, "cursor": Annotated[str, _meta("`next` of the page before")]}
SELECTED: Query = {"due_from": Point, "due_to": Point, "topic": Filter, "ordering_key": OrderingKey}
