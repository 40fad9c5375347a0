"""What the pages say that a call takes, and what lies beyond.

PAGES is written by hand from `docs/`: for each field its kind, its bounds, and the words of the page that say
so. It is compared with the pages. Then each call is sent the values at the bounds, which it takes, and those
one beyond, of a wrong type, null and left out, which it refuses: 422, the error names field and bound, and
nothing has changed.

Why something is refused, two fields at odds, and what hangs on a state have tests of their own, beside the
calls. Whether the calls keep to their own description is asked by test_schemathesis.py.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
import pytest_asyncio

from server.pull.lease_id import LeaseId, lease_text
from shards import keys
from shards.store import Table
from tests.support.http import Answer
from timeline.position import Position

from ..conftest import DAY_MS, NDJSON, START_MS, TOGETHER, Running

DOCS = Path(__file__).parents[3] / "docs"

# The name, with `!` if null is refused | kind and bounds, `~` before what no page says | words of the page.
# A null for a time is neither now nor as it was: whoever computes one and has none has to hear of it.
PAGES = """
message: http.md#schedule-a-message
topic! | topic 128 | no wildcards, not [reserved](mqtt.md#reserved-topics), up to 128 levels
payload | payload | Any other JSON value is sent as the JSON that you wrote
encoding | words json text | `json`: a string is sent as a JSON string
deliver_at! | instant | an instant, see below
deliver_to | target | an endpoint's name or an http(s) URL
deliver_in! | span most | a delay, from the server's clock
qos! | whole 0 2 | 0 to 2
expires_in | expires_in | so long after its due time the message is `expired`
late! | words deliver drop | `drop`: refused (422) if its time has passed
headers | headers 64 | up to 64 names and values without control characters
content_type | chars ~1 ~256 | MQTT 5 content type
key | chars ~1 ~256 | the [idempotency key](#idempotency)
ordering_key | bytes 1 128 | 1 to 128 bytes of printable UTF-8
spread | span most | `PT5M`: due up to so much later
retain! | flag | it becomes its topic's [retained message]

scope: http.md#schedule-a-message
key_scope | words kept pending | `pending`: the key is [free again]

debounce: http.md#debounce
debounce | debounce | `replace` and `key_only` do not go with `debounce`

upsert: http.md#upsert-by-key
cancel! | false | or `"cancel": true` alone
version | version | `version` is two integers of 64 bits

door: http.md#the-message-under-a-key
door | words http mqtt | `?door=mqtt`

due: http.md#list-and-count
due_from | point 100,000,000,000 | RFC 3339 or Unix ms (0, or at least 100,000,000,000)
due_to | point 100,000,000,000 | RFC 3339 or Unix ms (0, or at least 100,000,000,000)
topic | filter | a topic filter
@ http.md#schedule-a-message
ordering_key | bytes 1 128 | 1 to 128 bytes of printable UTF-8

list: http.md#list-and-count
state | words pending dispatched cancelled expired all | `pending` (default), `dispatched`
key | chars ~1 - | only the message under an idempotency key of yours
count | flag | `true`: an exact `count`

limit: http.md#list-and-count
limit | whole 1 1,000 | 1 to 1,000, 100 by default

cursor: http.md#list-and-count
cursor | cursor | `next` of the page before

ids: http.md#export-and-import
ids | flag | With `ids=true` on both sides

bulk: http.md#cancel-or-shift-many
dry_run! | flag | With `dry_run` nothing changes
limit | whole ~1 - | `limit` ends a call after so many matches
as_of | as_of | send it again with its `as_of`
cursor | cursor | Send its `next` as `cursor`

shift: http.md#cancel-or-shift-many
shift | shift | `shift` is a duration, and `-PT15M` moves back

density: http.md#density
from | past | the minute that has begun
bucket | bucket | at most 10,000 buckets
to | later | the last bucket is cut at `to`
topic | filter | a topic filter
past | flag | `true`: also dispatched and expired messages
retries | flag | `true`: each bucket has `retries`

lease: http.md#lease
max! | whole 1 1,000 | 1 to 1,000
wait | span ~0_s 60_s | up to 60 s
lease | span 1_s 12_h | 1 s to 12 h
filter | levels ~128 | of the group

lease_ids: http.md#lease
lease_ids! | lease_ids 1,000 | At most 1,000 `lease_ids` a call

nack: http.md#lease
delay | span most | after `delay` (default: the group's back-off)
reason | text - 255 | with `reason` (at most 255 characters)

extend: http.md#lease
lease! | span 1_s 12_h | 1 s to 12 h

group: places.md#groups
filter! | levels ~128 | `PUT` answers 201 for a new group

terms: mqtt.md#terms
ack_timeout | span ~0_s 12_h | `sessions.ack_timeout`; 12 h

tries: mqtt.md#terms
max_attempts | whole ~0 ~1,000,000 | 0: never
backoff | steps 32 | 32 steps, `limits.max_delay`

place: mqtt.md#terms
rate | rate | messages a second
expiry | expiry | `never`: until it is deleted
fair | flag | the first two not with `order`
per_key.concurrency | whole ~0 65,535 | any number, 65,535; any number; false
per_key.rate | rate | any number, 65,535; any number; false
@ order.md#limits-and-turns
per_key | object | messages of one key that are out at a time

endpoint: webhooks.md#endpoints
url! | url | absolute, `https`, without user, password and fragment
secret | secret | signs the posts; null: no signature
headers | fixed 64 | up to 64, 8 KiB in all
concurrency | whole 1 100 | posts at a time, 1 to 100
timeout | span 1_s 30_min | 1 s to [30 min](#long-posts)
body | words raw envelope | `envelope` posts JSON with [the payload in it]
retry | object | `{"max_attempts", "backoff": ["1s", "5s", ...]}`

since: places.md#what-you-can-do-with-a-place
from! | since | `:replay` `{"from": "PT1H"}`

skip: places.md#what-you-can-do-with-a-place
to! | to | to `now` (default), an instant, or a duration back
undone! | words dead drop | (`"undone": "dead"`, default), or are dropped and counted (`drop`)

kept: places.md#dead-letters
topic | filter | a topic filter
id | id | the dead letters of one message
key | chars ~1 - | the message under an idempotency key of yours
from | point | RFC 3339 or Unix ms
to | point | RFC 3339 or Unix ms

kept list: places.md#dead-letters
group | chars ~1 - | a group's name or its whole subscription
count | flag | `count=true`

change: places.md#dead-letters
ids | ids 1,000 | Both take `ids` (at most 1,000; with `group`, only those of that place)
@ places.md#retries
dry_run! | flag | All three take `ids` or `filter` and `dry_run`

requeue: places.md#dead-letters
deliver_in! | span most | after `deliver_in` or at once

try: places.md#retries
deliver_in! | span most | to `deliver_in` or `deliver_at`
deliver_at! | instant | to `deliver_in` or `deliver_at`

schedule: schedules.md#when
every | every | elapsed time between fires, at least a second
limit | whole ~1 - | `limit` (messages in all)
jitter | span most | Jitter delays each fire by up to that much
start | instant | `start` and `end` (instants, both inclusive)
end | end | `start` and `end` (instants, both inclusive)
@ schedules.md#when-the-server-was-down
misfire! | words fire_once fire_all skip | `misfire` decides
@ schedules.md#when-the-clocks-change
dst.gap! | words after before skip | 03:30 on the day that 03:00 becomes 04:00
dst.overlap! | words first second both | 03:30 on the day that 04:00 becomes 03:00
dst! | object | `dst` decides about a local time that the clocks skip or show twice

rule: schedules.md#when
cron | cron | five fields (minute, hour, day, month, weekday), six with seconds first
timezone | zone | `cron` and `rrule` need `timezone`

rrule: schedules.md#when
rrule | rrule | `COUNT` up to 1,000

preview: schedules.md#when-the-clocks-change
count! | whole ~1 1,000 | `count` (10, at most 1,000)

resume: schedules.md#calls
from | words now | With `{"from": "now"}`, any schedule continues

calendar: schedules.md#as-a-calendar
days | whole ~1 366 | (`days`, up to 366)

history: http.md#history
from | past | `GET /v1/history?from&to&step&group`
step | step | `GET /v1/history?from&to&step&group`
group | chars ~1 - | `group` picks one of each point's `groups`

clock: http.md#simulated-clock
by! | by | -d '{"by":"P1D"}'

job: http.md#jobs
kind! | words | `{"kind":"split","slice":START,"parts":4,"run":"caller"}`
run! | words | the same with `"run":"server"`, the default
slice | start | `{"kind":"split","slice":START,"parts":4,"run":"caller"}`
parts | whole ~2 ~1,000 | `{"kind":"split","slice":START,"parts":4,"run":"caller"}`

backup: http.md#backups
dir! | dir | 422 if the path leads out of it
"""
MOST = "3650d"
"""`limits.max_delay`, if it is not set."""
FAR = f"{START_MS + DAY_MS:012x}{1 << 40:020x}"
"""A message."""
LEASE = lease_text(LeaseId("$share/g/a/#", 1 << 60, Position(1), -1))
BACK = ("PT1H", "0s", "2026-11-21T07:00:00Z")
NOT_BACK = ("soon", "", "2026-13-01T00:00:00Z", "1796127600", 1, True)
INSTANTS = ("2026-12-01T12:20:00Z", "2026-12-01T12:20:00+02:00", "2027-03-28T09:00[Europe/Bucharest]")
NO_INSTANTS = ("tomorrow", "2026-11-21", "2026-11-21T08:00:00", "1796127600", 1_796_127_600, True)
SIZED: dict[str, Callable[[int], Any]] = {
    "whole": lambda number: number,
    "span": lambda ms: f"{ms}ms",
    "chars": lambda count: "x" * count,
    "text": lambda count: "x" * count,
    "bytes": lambda count: "é" * (count // 2) + "x" * (count % 2),
    "topic": lambda levels: "/" * (levels - 1),
    "levels": lambda levels: "/" * (levels - 1),
    "headers": lambda count: {f"x{n}": "v" for n in range(count)},
    "fixed": lambda count: {f"x{n}": "v" for n in range(count)},
    "steps": lambda count: ["1s"] * count,
    "ids": lambda count: ["0" * 32] * count,
    "lease_ids": lambda count: [LEASE] * count,
}
"""A value of a kind, as large as a bound."""
Values = tuple[Any, ...]
TAKEN: dict[str, Values] = {
    "payload": (None, "", 1.5, {}, "x" * 262_144),
    "expires_in": (0.001, 4_294_967_295),
    "debounce": ({"wait": "1ms", "max_wait": MOST}, {"wait": "2m", "max_wait": 120}),
    "version": ([-(2**63), 2**63 - 1],),
    "false": (False,),
    "flag": (True, False),
    "instant": INSTANTS,
    "point": ("0", "100000000000", *INSTANTS),
    "past": BACK[2:],
    "filter": ("#", "a/+/b"),
    "shift": ("-PT15M", -900, "2h"),
    "bucket": ("1s", "P1D"),
    "later": (START_MS + 1,),
    "rate": (0, 2.5, 1_000_000, "100/m", "5/h"),
    "expiry": ("never", "7d", MOST),
    "headers": ({},),
    "fixed": ({"x": "v" * 8_191},),
    "steps": ([MOST],),
    "url": ("https://example.com/hook?a=b",),
    "secret": ("whsec_" + "A" * 32,),
    "since": BACK,
    "to": ("now", *BACK),
    "id": ("0" * 32,),
    "every": (1, "90s", MOST),
    "end": ("2027-01-01T00:00:00Z",),
    "cron": ("0 2 * * *", "0 0 2 * * *", "@daily"),
    "zone": ("UTC", "Europe/Bucharest"),
    "rrule": ("FREQ=DAILY", "FREQ=DAILY;COUNT=1000"),
    "step": ("1m",),
    "by": (0,),
}
REFUSED: dict[str, Values] = {
    "whole": ("1", 0.5, True, []),
    "span": ("soon", "P1M", "1 year", "-1s", -1, True, []),
    "chars": ("a\n", 5, True, []),
    "text": (5, True, []),
    "bytes": ("a\n", 5, True, []),
    "words": ("nope", 5, True),
    "flag": (1, "true", []),
    "instant": (*NO_INSTANTS, "2090-01-01T00:00:00Z"),
    "point": ("1796127600000000", "99999999999", *NO_INSTANTS),
    "past": ("soon", "-1", "3600"),
    "filter": ("", "a#", "a/#/b", 5),
    "levels": ("", "a#", "a/#/b", 5),
    "topic": ("", "a/+", "a/#", "a\0", "a\x07b", "a\uffff", "$SYS/x", "$delayed/5/x", 5),
    "object": ([], "x", 5, {"unheard": 1}),
    "headers": ([], {"": "x"}, {"a": 1}, {"a": "\0"}, {"a": "1\n2"}, {"a": "é" * 2_049}, {"fasti-x": "y"}),
    "fixed": ({"x": "v" * 8_192}, {"webhook-id": "x"}, {"x": "a\r\nb: c"}, {"x": "a", "X": "b"}, {"a": 1}),
    "steps": ([], ["soon"], [f"{MOST}1ms"], [True], "1s"),
    "lease_ids": ({}, "x", ["x"], [5]),
    "ids": ({}, "x", ["x"], [5]),
    "target": ("", "nobody", "a b", "ftp://x/", "http://127.0.0.1:9/", "https://u:p@x.example/", 5),
    "payload": ("x" * 262_145, "x" * 300_000),
    "expires_in": (0, 4_294_967_295.001),
    "debounce": (
        *({"wait": wait, "max_wait": "2m"} for wait in (0, "0s", "120001ms", "soon", True, None)),
        *({"wait": "9s", "max_wait": most} for most in ("8999ms", f"{MOST}1ms", "soon", True, None)),
        *({"wait": "9s"}, {"max_wait": "9s"}, {"wait": "9s", "max_wait": "9s", "unheard": 1}, [], "9s", True),
    ),
    "version": ([], [1], [1, 2, 3], [1, 2**63], [-(2**63) - 1, 0], [1, "2"]),
    "false": (1, "true"),
    "cursor": ("x", "abc", "z" * 24, "f" * 24),
    "as_of": ("x", "0"),
    "shift": (1_796_127_600, "-1796127600000", "P1Y", "x", True),
    "bucket": (0, "999ms", "soon", "P1M"),
    "later": (START_MS, "soon"),
    "rate": (-1, 1_000_001, "1/d", True),
    "expiry": (f"{MOST}1ms", "soon", -1, True),
    "url": ("", "/x", "ftp://x/", "http://x.example/", "https://u:p@x.example/", "https://x.example/#f", 5),
    "secret": ("", "short", "whsec_short", 5),
    "since": NOT_BACK,
    "to": NOT_BACK,
    "id": ("x", "0" * 31, "A" * 32),
    "every": (0.999, "999ms", f"{MOST}1ms", "P1M", -1, True),
    "end": ("2020-01-01T00:00:00Z", *NO_INSTANTS),
    "cron": ("", "61 * * * *", "0 2 * *", "0 0 L-3 * *", "0 0 LW * *", "0 0 15W * *", "0 0 * * 6#3", 5),
    "zone": ("", "Mars/Olympus", "../../etc/passwd", 5),
    "rrule": ("", "FREQ=NEVER", "FREQ=DAILY;COUNT=1001", "FREQ=WEEKLY;BYDAY=1MO", 5),
    "step": (0, "soon", "P1M"),
    "by": ("soon", "P1M", -1, True, 10**13),
    "start": ("x", 1.5, []),
    "dir": ("", "..", "/tmp/x", 5),
}
REFUSED_IN_QUERY: dict[str, Values] = REFUSED | {
    "whole": ("", "x", "-1", "0.5", "1e2", "\N{SUPERSCRIPT TWO}"),
    "chars": (),
    "bytes": ("a\n",),
    "words": ("", "nope"),
    "flag": ("", "1", "yes", "True"),
    "point": ("", "today", "-1", "3600", "1796127600000000", "99999999999", *NO_INSTANTS[:-1]),
    "filter": ("", "a#", "a/#/b"),
}


class Field(NamedTuple):
    """A row of PAGES."""

    name: str
    is_null_refused: bool
    kind: str
    bounds: tuple[str, ...]
    said: str
    page: str

    def taken(self) -> list[Any]:
        words = self.bounds if self.kind == "words" else ()
        most = [MOST] if "most" in self.bounds else []
        return [*TAKEN.get(self.kind, ()), *words, *most, *(SIZED[self.kind](size) for size in self.sizes())]

    def beyond(self) -> Iterator[tuple[Any, str]]:
        """Values beyond the bounds, and what the error says of them."""
        if "most" in self.bounds:
            yield f"{MOST}1ms", "max"
        sizes = list(self.sizes())
        if sizes and len(self.bounds) == 2 and self.bounds[0] != "-":
            yield SIZED[self.kind](sizes[0] - 1), ""
        if sizes and self.bounds[-1] != "-":
            yield SIZED[self.kind](sizes[-1] + 1), str(sizes[-1] // (1_000 if self.kind == "span" else 1))

    def sizes(self) -> Iterator[int]:
        for bound in self.bounds if self.kind in SIZED else ():
            number, _, unit = bound.strip("~").replace(",", "").partition("_")
            if number.isdigit():
                yield int(number) * {"": 1, "s": 1_000, "min": 60_000, "h": 3_600_000}[unit]

    def figures(self) -> list[str]:
        """Those that the page says."""
        if self.kind == "words":
            return []
        return [bound.replace("_", " ") for bound in self.bounds if bound[0].isdigit()]


def read() -> dict[str, tuple[Field, ...]]:
    sets = {}
    for block in PAGES.strip().split("\n\n"):
        head, *rows = block.split("\n")
        name, _, page = head.partition(": ")
        found = []
        for row in rows:
            if row.startswith("@"):
                page = row[2:]
                continue
            called, values, said = row.split(" | ")
            kind, *bounds = values.split()
            found.append(Field(called.rstrip("!"), called[-1] == "!", kind, tuple(bounds), said, page))
        sets[name] = tuple(found)
    return sets


SETS = read()
TIMES = ("deliver_at", "deliver_in")
SETS["move"] = tuple(one for one in SETS["message"] if one.name in TIMES)
SETS["message-key"] = tuple(one for one in SETS["message"] if one.name != "key")
SETS["message-time"] = tuple(one for one in SETS["message-key"] if one.name not in (*TIMES, "spread"))


def fields(names: str) -> tuple[Field, ...]:
    """Of some sets; `filter>due`: as members of the member `filter`."""
    found = list[Field]()
    for name in names.split(", "):
        outer, _, inner = name.rpartition(">")
        found += [one._replace(name=f"{outer}.{one.name}".strip(".")) for one in SETS[inner]]
    return tuple(found)


# Method and path, `LINES` is NDJSON | fields | the body, or the query of a GET | what cannot be left out.
CALLS = """
POST /v1/messages{,?claims=false} | message | {"topic": "a", "payload": "x"} | topic payload
POST /v1/messages:batch | message | [{"topic": "a", "payload": "x"}] | topic payload
LINES /v1/messages:batch | message | [{"topic": "a", "payload": "x"}] | topic payload
POST /v1/messages | scope | {"topic": "a", "payload": "x", "key": "scoped"} |
POST /v1/messages:batch | scope | [{"topic": "a", "payload": "x", "key": "scoped"}] |
POST /v1/messages?claims=false | debounce | {"topic": "a", "payload": "", "key": "d", "debounce": null} |
PUT /v1/messages/by-key/k | upsert | {"topic": "a", "payload": "x"} | topic payload
PUT /v1/messages/by-key/k | message-key | {"topic": "a", "payload": "x"} |
PATCH /v1/messages/{by-key/far,FAR} | move | {} |
GET /v1/messages/by-key/far | door | {} |
GET /v1/messages | due, list, limit, cursor | {} |
GET /v1/messages:export | due, ids | {} |
POST /v1/messages:cancel | filter>due, bulk | {"filter": {"topic": "none"}} | filter filter.topic
POST /v1/messages:reschedule | filter>due, bulk, shift | {"filter": {"topic": "x"}, "shift": 1} | filter shift
GET /v1/timeline/density | density | {"from": "1795248000000", "to": "1795258000000"} |
GET /v1/slices | limit, cursor | {} |
POST /v1/groups/nobody/messages:lease | lease | {"max": 1} | max
POST /v1/groups/g/messages:{ack,release} | lease_ids | {"lease_ids": []} | lease_ids
POST /v1/groups/g/messages:nack | lease_ids, nack | {"lease_ids": []} | lease_ids
POST /v1/groups/g/messages:extend | lease_ids, extend | {"lease_ids": [], "lease": "1m"} | lease_ids lease
PUT /v1/groups/g | group, terms, tries, place | {"filter": "a/#"} | filter
PUT /v1/endpoints/e | endpoint, retry>tries, place | {"url": "https://example.com/"} | url
POST /v1/{groups/g,sessions/s,endpoints/e}:replay | since | {"from": "PT1H"} | from
POST /v1/{groups/g,sessions/s,endpoints/e}:skip | skip | {} |
GET /v1/{sessions,groups,endpoints,schedules,jobs} | limit | {} |
GET /v1/{dead,retries} | kept, kept list, limit, cursor | {} |
POST /v1/{dead:drop,retries:bury,retries:drop} | change | {"ids": []} |
POST /v1/dead:requeue | change, requeue | {"ids": []} |
POST /v1/retries:try | change, try | {"ids": []} |
POST /v1/dead:{drop,requeue} | filter>kept | {"filter": {"topic": "x"}} | filter filter.topic
POST /v1/retries:{try,bury,drop} | filter>kept | {"filter": {"topic": "x"}} | filter filter.topic
PUT /v1/schedules/s | schedule, message-time | {"every": "1h", "topic": "a"} | topic
PUT /v1/schedules/z | rule | {"cron": "@daily", "timezone": "UTC", "topic": "a"} | topic timezone
PUT /v1/schedules/r | rrule | {"rrule": "FREQ=DAILY", "timezone": "UTC", "topic": "a"} | timezone
POST /v1/schedules:preview | preview | {"every": "1h"} |
POST /v1/schedules/far:resume | resume | {} |
GET /v1/schedules/far/upcoming | preview | {} |
GET /v1/schedules.ics | calendar | {} |
GET /v1/history | history | {} |
POST /v1/clock:advance | clock | {"by": 0} | by
POST /v1/jobs | job | {"kind": "split", "slice": 1795248000000, "run": "caller"} | kind slice
POST /v1/backups | backup | {"dir": "x"} | dir
"""


class Call(NamedTuple):
    """A row of CALLS."""

    method: str
    path: str
    fields: tuple[Field, ...]
    body: str
    required: list[str]

    def bodies(self, name: str, *value: Any) -> Any:
        """With the field set to `value`; without one, left out."""
        body = json.loads(self.body)
        *outer, last = name.split(".")
        inner = body[0] if isinstance(body, list) else body
        for one in outer:
            inner = inner.setdefault(one, {})
        inner.pop(last, None)
        if value:
            (inner[last],) = value
        return body

    async def send(self, server: Running, body: Any) -> Answer:
        if self.method == "GET":
            query = {key: str(one).lower() if one in (True, False) else one for key, one in body.items()}
            return await server.call("GET", f"{self.path}?{urlencode(query)}", status=None)
        if self.method == "LINES":
            line = json.dumps(body[0]).encode()
            return await server.call("POST", self.path, line, status=None, Content_Type=NDJSON)
        return await server.call(self.method, self.path, body, status=None)

    def refuses(self) -> Iterator[tuple[str, Any, str]]:
        """(field, the body, what the error says)"""
        is_query = self.method == "GET"
        for field in self.fields:
            for value, told in field.beyond():
                yield field.name, self.bodies(field.name, value), told
            for value in (REFUSED_IN_QUERY if is_query else REFUSED).get(field.kind, ()):
                yield field.name, self.bodies(field.name, value), "nope" if value == "nope" else ""
            if field.is_null_refused and not is_query:
                yield field.name, self.bodies(field.name, None), ""
        for name in self.required:
            yield name.partition(".")[0], self.bodies(name), ""
        for outer in {field.name.rpartition(".")[0] for field in self.fields} | {""}:
            name = f"{outer}.unheard".strip(".")
            yield name, self.bodies(name, 1), "unknown"


def calls() -> Iterator[Any]:
    for row in CALLS.strip().split("\n"):
        what, sets, body, required = (one.strip() for one in row.split(" |"))
        before, _, rest = what.partition("{")
        words, _, after = rest.partition("}")
        for one in words.split(","):
            method, path = f"{before}{one}{after}".replace("FAR", FAR).split()
            yield pytest.param(Call(method, path, fields(sets), body, required.split()), id=f"{path} {sets}")


def section(page: str) -> list[str]:
    """The rows of tables, and the paragraphs, of `page.md#section`."""
    name, _, slug = page.partition("#")
    found = []
    for part in re.split(r"^#+ ", (DOCS / name).read_text(encoding="utf-8"), flags=re.MULTILINE):
        title = part.partition("\n")[0].lower()
        if re.sub(r"[^a-z -]", "", title).replace(" ", "-") == slug:
            found += re.split(r"\n(?=\||- |\n)", part)
    return [" ".join(one.split()) for one in found]


@pytest.mark.parametrize("name", SETS)
def test_the_pages_say_so(name: str) -> None:
    for field in SETS[name]:
        last = field.name.rpartition(".")[2].replace("_", "[_-]")
        lines = [line for line in section(field.page) if re.search(rf"\b{last}\b", line)]
        assert any(field.said in line for line in lines), (field, lines)
        assert [figure for figure in field.figures() if figure not in field.said] == [], field


def test_the_settings_are_these_by_default() -> None:
    rows = section("settings.md#limits")
    for name, value in (("limits.max_delay", MOST), ("limits.max_payload", "256KiB")):
        assert any(row.startswith(f"| `{name}` | `{value}` |") for row in rows)


def rows(server: Running) -> dict[Table, list[tuple[bytes, bytes]]]:
    """All but what is written now and then by itself."""
    tables = set(Table) - {Table.META, Table.CURSORS, Table.SESSIONS}
    return {table: list(server.store.scan(table, b"", keys.LAST)) for table in tables}


def is_named(name: str, said: str) -> bool:
    """The field itself, a member of it, or its last word."""
    return said == name or said.startswith(f"{name}.") or (said != "" and name.endswith(f".{said}"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furnished(lasting: Running) -> Running:
    """Something of everything."""
    await lasting.schedule(deliver_in="1h", key="far")
    far = {"id": FAR, "topic": "a", "payload": "x", "deliver_in": "1d"}
    await lasting.call("POST", "/v1/messages:batch?ids=true", [far], status=201)
    await lasting.connect("s", "#")
    await lasting.call("PUT", "/v1/groups/g", {"filter": "a/#"}, status=201)
    await lasting.call("PUT", "/v1/endpoints/e", {"url": "https://example.com/"}, status=201)
    await lasting.call("PUT", "/v1/schedules/far", {"every": "1h", "topic": "a"}, status=201)
    return lasting


@TOGETHER
@pytest.mark.parametrize("call", list(calls()))
class TestEachCall:
    async def test_what_lies_beyond_is_refused_by_name_and_changes_nothing(
        self, furnished: Running, call: Call
    ) -> None:
        before, wrong = rows(furnished), []
        for name, body, told in call.refuses():
            answer = await call.send(furnished, body)
            is_refused = answer.status == 422 and answer.slug == "refused"
            (said,) = answer.body["errors"] if is_refused else [{"field": "", "detail": ""}]
            if not is_named(name, said["field"]) or told not in said["detail"].replace(",", ""):
                wrong.append((name, str(body)[:200], answer.status, said))
        assert wrong == []
        assert rows(furnished) == before

    async def test_what_lies_at_the_bounds_is_taken(self, furnished: Running, call: Call) -> None:
        for field in call.fields:
            for value in field.taken():
                answer = await call.send(furnished, call.bodies(field.name, value))
                assert answer.status in (200, 201, 404, 409), (field.name, str(value)[:200], answer)

    async def test_what_cannot_be_read_is_no_request(self, furnished: Running, call: Call) -> None:
        method, path = call.method, call.path
        if method not in ("GET", "LINES"):
            assert (await furnished.call(method, path, b"{", status=400)).slug == "not-readable"
            plain = await furnished.call(method, path, b"{}", status=415, Content_Type="text/plain")
            assert plain.slug == "unsupported-media-type"
            if call.required:
                assert (await furnished.call(method, path, b"", status=400)).slug == "not-readable"
            asked = f"{path}{'&' if '?' in path else '?'}unheard=1"
            refused = await furnished.call(method, asked, call.bodies(""), status=422)
            assert refused.body["errors"][0]["field"] == "unheard"
