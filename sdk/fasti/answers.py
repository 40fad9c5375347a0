"""What the server answers, as values: one for each type of its API that the SDK hands out.

Each has the members of the answer; `values` reads them by the types of the attributes. `_PLACES` says where
one is that has another name there, or is a member of a member. An attribute without a default is one without
which there is no value. A test compares names and types with the server's (tests/sdk/test_answers.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal

from .values import Amount, Answer, Content, Pieces, Whole, Work


@dataclass(frozen=True, slots=True)
class Info(Whole):
    """`GET /v1/info`. `mqtt` lists the listeners: `{"transport", "host", "port", "url"}`.

    `build`: "compiled" where the server runs compiled modules, else "pure".
    """

    now: datetime
    version: str = ""
    node: int = 0
    clock: str = "system"
    build: str = "pure"
    url: str = ""
    mqtt: tuple[Mapping[str, Any], ...] = ()
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Shard(Whole):
    """A capped run of messages inside a slice; `structure` says which topics are in it.

    `cap`: maximum messages, `cap_bytes`: maximum bytes; `sealed`: it takes no more.
    """

    shard: int
    count: int
    live: int
    bytes: int
    structure: str = ""
    cap: int | None = None
    cap_bytes: int | None = None
    first: Mapping[str, Any] | None = None
    last: Mapping[str, Any] | None = None
    borrowed: bool = False
    sealed: bool = False
    unreadable: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Slice(Pieces):
    """A span of due time [start, end). `live` leaves out cancelled and moved messages, `count` does not.

    `shards` is filled by `get`, not by `list`; `shard_count` by both.
    """

    start: datetime
    end: datetime
    generation: int
    count: int
    live: int
    bytes: int
    count_is_exact: bool = False
    borrowed: int | None = None
    unreadable: int | None = None
    shards: tuple[Shard, ...] = ()


@dataclass(frozen=True, slots=True)
class Session(Whole):
    """A subscriber as the server knows it: where it has read to, and how far that is behind."""

    client_id: str
    name: str = ""
    position: Mapping[str, Any] | None = None
    lag_messages: int | None = None
    lag_messages_is_exact: bool = False
    lag_seconds: float | None = None
    in_flight: int | None = None
    delivered: int | None = None
    failed: int | None = None
    undone: Undone | None = None
    dead_letters: int | None = None
    expiry: timedelta | None = None
    incarnation: int | None = None
    left_at: datetime | None = None
    connected: bool = False
    connected_at: datetime | None = None
    subscriptions: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterNode(Whole):
    """One of the nodes, as the leader heard of it `heard_ms` ago (None: never).

    `state` is leader, follower or resync. `applied`: the log record up to which its disk is complete;
    `lag`: number of records that it is behind, None if unknown.
    """

    node: str
    url: str = ""
    mqtt: str = ""
    state: str = ""
    epoch: int = 0
    applied: int = 0
    lag: int | None = None
    heard_ms: int | None = None
    version: str = ""
    is_alive: bool = False


@dataclass(frozen=True, slots=True)
class ClusterState(Whole):
    """`GET /v1/cluster`: the state of the node that answered, and what it knows about the others.

    `leader`: the leader's name, None if unknown. `why`: what is wrong with the node, empty if nothing.
    `wants_retime`: the node has another tzdata than the one used for due times, and recomputes them when
    it takes the lead.
    """

    _PLACES: ClassVar = {"leader": "leader.node", "wants_retime": "tzdata.retime"}
    name: str = ""
    timeline: str = ""
    node: str = ""
    state: str = ""
    epoch: int = 0
    applied: int = 0
    takeovers: int = 0
    why: str = ""
    fit: bool = False
    clock_offset_ms: int | None = None
    scrubbed_at: str | None = None
    keys_digest: str = ""
    nodes: tuple[ClusterNode, ...] = ()
    leader: str | None = None
    wants_retime: bool = False


@dataclass(frozen=True, slots=True)
class Try(Answer):
    """A failed delivery. `at`: time of the failure; `by`: who had the message, empty: unknown; `seconds`: how
    long, None: unknown.
    """

    at: datetime
    by: str = ""
    outcome: str = ""
    reason: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Entry(Content):
    """A message that a place has not finished, and does not have at work.

    `group`: the group or client id; `attempts`: all deliveries to it. `subscription`:
    `$share/{group}/{filter}` of a group; None: a session. `reason`: why the last delivery failed; `tries`:
    the last ones, at most 20.
    """

    id: str
    topic: str
    group: str
    attempts: int
    reason: str
    deliver_at: datetime | None = None
    state: str = ""
    qos: int | None = None
    deliver_to: str | None = None
    ordering_key: str | None = None
    schedule: str | None = None
    dispatched_at: datetime | None = None
    content_type: str | None = None
    subscription: str | None = None
    tries: tuple[Try, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(Entry):
    """A message that was given up at `died_at`; the rest is as of an `Entry`."""

    died_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRetry(Entry):
    """A message that will be sent again at `retry_at`, to it alone; the rest is as of an `Entry`."""

    retry_at: datetime


@dataclass(frozen=True, slots=True)
class Failing:
    """Results of an endpoint's last posts since the server started.

    `share`: failed part of the last `of` posts (up to 20), 0 to 1. `last_reason`: of the newest failure;
    None if none failed.
    """

    share: float
    of: int
    last_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Endpoint(Whole):
    """An endpoint as the server knows it. `state`: active or paused; `reason`: why the server has paused it.

    `headers`: their names. `rate`: messages a second; 0: no limit. `undone`, `incarnation` and `expiry`:
    as of a `Group`.
    """

    name: str
    url: str
    state: str = ""
    reason: str | None = None
    secret: Mapping[str, Any] | None = None
    headers: tuple[str, ...] = ()
    concurrency: int | None = None
    timeout: float | None = None
    body: str = ""
    rate: float | None = None
    order: bool | None = None
    on_dead: Literal["next", "hold"] | None = None
    per_key: Mapping[str, Any] | None = None
    fair: bool | None = None
    keys_held: int | None = None
    retry: Mapping[str, Any] | None = None
    expiry: timedelta | None = None
    lag_messages: int | None = None
    in_flight: int | None = None
    undone: Undone | None = None
    dead_letters: int | None = None
    incarnation: int | None = None
    failing: Failing | None = None


@dataclass(frozen=True, slots=True)
class Undone(Amount):
    """Unfinished messages of a place.

    `lag`: due and not read; `in_flight`: sent or leased, and not acked; `retries`: waiting for their next
    try, the first at `next_retry_at`. `oldest_at`: due of the oldest of all these.
    """

    lag: int = 0
    in_flight: int = 0
    retries: int = 0
    next_retry_at: datetime | None = None
    oldest_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Group(Whole):
    """A group as the server knows it. `state`: active or paused; `members`: its sessions there now.

    `undone`: what it has not finished. `incarnation`: which one of that name it is, from 1. `expiry`: how
    long it stays with nobody there, None: until it is deleted. Other durations are in seconds.
    """

    name: str
    filter: str
    state: str
    lag_messages: int | None = None
    lag_seconds: float | None = None
    in_flight: int = 0
    delivered: int | None = None
    failed: int | None = None
    undone: Undone | None = None
    dead_letters: int | None = None
    expiry: timedelta | None = None
    incarnation: int | None = None
    left_at: datetime | None = None
    members: tuple[Mapping[str, Any], ...] = ()
    ack_timeout: float | None = None
    max_attempts: int | None = None
    backoff: tuple[float, ...] = ()
    rate: float | None = None
    order: bool = False
    on_dead: str = ""
    per_key: Mapping[str, Any] | None = None
    fair: bool = False
    keys_held: int | None = None


@dataclass(frozen=True, slots=True)
class OrderingKey(Whole):
    """An ordering key that is behind or in trouble. `lag`: messages that wait for the key, counted up to
    1,000; `retry_at`: of the message that waits for its try; `held`: by a dead letter, or by hand; `id`:
    of the message that waits or is the dead letter; `oldest_at`: due of the oldest one that is not in
    flight.
    """

    key: str
    filter: str = ""
    lag: int = 0
    lag_is_exact: bool = False
    in_flight: int = 0
    retry_at: datetime | None = None
    held: Literal["dead", "hand"] | None = None
    id: str | None = None
    oldest_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Skipped(Whole):
    """A place was moved forward from `start` to `end`; `undone`: its unfinished messages before."""

    _PLACES: ClassVar = {"start": "from", "end": "to"}
    start: datetime
    end: datetime
    undone: Undone


@dataclass(frozen=True, slots=True)
class Job(Work):
    """`kind`: split, archive, expire or compact. `done` of `total`: progress, if reported; `detail`: why it
    was aborted.

    A split has `slice`, other jobs `slices`. One of the archive has the `number` of its commit.
    """

    _PLACES: ClassVar = {"done": "progress.done", "total": "progress.total"}
    id: str
    state: str
    kind: str = ""
    run: str = ""
    node: int | None = None
    created_at: datetime | None = None
    slice: Mapping[str, Any] | None = None
    parts: int | None = None
    split_above: int | None = None
    children: tuple[Mapping[str, Any], ...] = ()
    slices: tuple[Mapping[str, Any], ...] = ()
    archive: str | None = None
    number: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    date: str | None = None
    ended_at: datetime | None = None
    detail: str = ""
    rows: int | None = None
    done: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Commit(Whole):
    """A commit of the archive. `kind`: append, again or compact.

    It covers positions from `start_ms` to `end_ms` (of a compaction both 0), has `files`, and `replaces` the
    paths of earlier ones.
    """

    number: int
    kind: str
    start_ms: int = 0
    end_ms: int = 0
    spans: tuple[Mapping[str, Any], ...] = ()
    files: tuple[Mapping[str, Any], ...] = ()
    replaces: tuple[str, ...] = ()
    timeline: str = ""
    node: int = 0
    job: str = ""
    created_ms: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Fire(Whole):
    """One fire of a schedule; `note` says what DST or a move changed."""

    at: datetime
    local: str = ""
    note: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Silence(Answer):
    """Until when a schedule sends nothing although its rule has earlier fires, and why."""

    until: datetime
    why: str


@dataclass(frozen=True, slots=True)
class Schedule(Content):
    """A schedule as the server knows it. `state`: active, paused, finished, or stopped (`reason`: why it
    cannot go on); `count`: messages so far.

    It fires by one of `cron`, `every` (as it was given: "PT15M", 90) and `rrule`, in `timezone`. `last`:
    the last fire; None: nothing yet, or the server does not tell. `next_id`: of the pending message of the
    next fire. `silent`: the clock was ahead and has sent the fires before `next`; `resume(name,
    from_="now")` ends that.
    """

    _PLACES: ClassVar = {"next_id": "next.id"}
    name: str
    timezone: str = ""
    dst: Mapping[str, Any] | None = None
    misfire: str = ""
    state: str = ""
    created_at: datetime | None = None
    changed_at: datetime | None = None
    count: int = 0
    next: Fire | None = None
    last: Fire | None = None
    silent: Silence | None = None
    reason: str | None = None
    topic: str = ""
    cron: str | None = None
    every: str | float | None = None
    rrule: str | None = None
    next_id: str | None = None


@dataclass(frozen=True, slots=True)
class Bucket(Answer):
    """Number of messages pending from `at` until the next bucket."""

    at: datetime
    count: int
    retries: int | None = None


@dataclass(frozen=True, slots=True)
class Density(Whole):
    """Pending messages per bucket, in order of time."""

    _PLACES: ClassVar = {"start": "from", "end": "to", "bucket": "bucket_s"}
    start: datetime
    end: datetime
    bucket: timedelta
    total: int
    buckets: tuple[Bucket, ...] = ()


@dataclass(frozen=True, slots=True)
class BulkResult(Answer):
    """`matched`: messages that were selected; `changed`: those of them that were changed."""

    matched: int
    changed: int


@dataclass(frozen=True, slots=True)
class Claims(Answer):
    """Number of groups, endpoints and sessions that would get a message if it were dispatched now."""

    groups: int
    endpoints: int
    sessions: int


@dataclass(frozen=True, slots=True)
class Upserted(Answer):
    """What `ByKey.upsert` has left under the key.

    `id` None: there is no message, and the server remembers the version. `changed`: whether the call has
    made, changed or cancelled the message. False: its version was not higher.
    """

    id: str | None
    state: str
    deliver_at: datetime | None
    changed: bool


@dataclass(frozen=True, slots=True)
class Why(Answer):
    """What has happened to a message, in order, and what it waits for. None: nothing."""

    sentences: tuple[str, ...] = ()
    waits_for: str | None = None


@dataclass(frozen=True, slots=True)
class Handling(Answer):
    """Delivery state of a dispatched message in one group (`group`, `filter`), or in one `session`.

    `state`: "in_flight" (until `lease_until`, if it is leased), "withheld" (its sender may not send it
    now: `withheld_by`), "waiting" (not read yet), "retry" (next try at `retry_at`), "dead", "dropped" (its
    retry was dropped), or "done" (nothing is left). `attempts`: deliveries so far, None if they are no
    longer known; `tries`: the last ones, at most 20. `reason`: why the last one failed, "" if unknown.
    `progress`: how far its worker says that it is.
    """

    state: str
    group: str | None = None
    filter: str | None = None
    session: str | None = None
    attempts: int | None = None
    retry_at: datetime | None = None
    reason: str = ""
    by: str | None = None
    lease_until: datetime | None = None
    tries: tuple[Try, ...] = ()
    withheld_by: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    seconds: float | None = None
    answer: str | None = None
    result: Any | None = None
    progress: Any | None = None
