"""All answers: each is encoded as it is, and the API's description is generated from them.

A member that may be absent is `UNSET`; one that can be null says so.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from shards.archives import ArchivedFile, Count, Manifest
from shards.state import State

from ...delivery.deliveries import Delivery
from ...delivery.outcomes import Outcome
from ...delivery.payloads import Encoding
from ...delivery.tries import Try
from ...observe.history import GroupSample, SessionSample
from ...settings.times import Instant
from .scalars import Cursor, Id, Seq


class Body(Struct, gc=False):
    """An answer or a part of one."""


class FieldProblem(Body):
    """An error in a field; `line` counts from 1: lines of NDJSON or items of an array."""

    field: str
    detail: str
    line: int | UnsetType = UNSET


class Problem(Body, kw_only=True):
    """RFC 9457; further members depend on the type."""

    type: str
    title: str
    status: int
    detail: str | UnsetType = UNSET
    errors: list[FieldProblem] | UnsetType = UNSET


# -- messages


class Scheduled(Body):
    """A stored message."""

    id: Id
    deliver_at: Instant
    state: State
    server_time: Instant


class Claims(Body):
    """Number of groups, endpoints and sessions that would get a message if it were dispatched now."""

    groups: int
    endpoints: int
    sessions: int


class Posted(Scheduled):
    """The answer to a POST. `claims`: on request."""

    claims: Claims | UnsetType = UNSET


class Upserted(Body):
    """The message under a key after an upsert. `id` null: there is none, and the version is remembered."""

    id: Id | None
    state: State
    deliver_at: Instant | None
    changed: bool


class Accepted(Body):
    """A stored batch; ids in the order of the items."""

    accepted: int
    ids: list[Id]


class Result(Body):
    """Result of one item: its id or a problem; `replayed` and its state: the key was already known."""

    id: Id | UnsetType = UNSET
    replayed: bool | UnsetType = UNSET
    state: State | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class Results(Body):
    """Results of a batch's items, in order."""

    results: list[Result]


class Message(Body):
    """A message as sent, and its state. `withheld_by`: why its sender may not send it now; `outcome`: what
    has become of it, of a single message, and in a list on request."""

    id: Id
    topic: str
    deliver_at: Instant
    state: State
    qos: int
    deliver_to: str | UnsetType = UNSET
    ordering_key: str | UnsetType = UNSET
    local: str | UnsetType = UNSET
    schedule: str | UnsetType = UNSET
    dispatched_at: Instant | UnsetType = UNSET
    cancelled_at: Instant | UnsetType = UNSET
    withheld_by: str | UnsetType = UNSET
    outcome: Outcome | UnsetType = UNSET
    payload: Any | UnsetType = UNSET
    encoding: Encoding | UnsetType = UNSET
    retain: bool | UnsetType = UNSET
    late: str | UnsetType = UNSET
    expires_in: float | UnsetType = UNSET
    publisher: str | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET


class MessageShown(Message):
    """A single message. `deliveries`, of a dispatched or withheld one: for each of its groups, and for each
    session that has not finished it; `deliveries_truncated`: whether there are more.
    """

    deliveries: list[Delivery] | UnsetType = UNSET
    deliveries_truncated: bool | UnsetType = UNSET


class Why(Body):
    """What has happened to a message, in order, and what it waits for. null: nothing."""

    sentences: list[str]
    waits_for: str | None


class Page(Body):
    """A part of a list. `next`: null at the end."""

    next: Cursor | None


class CountedPage(Page):
    """`count`: over all pages, on request."""

    count: int | UnsetType = UNSET


class MessagePage(CountedPage, kw_only=True):
    """Messages in position order."""

    messages: list[Message]


class KeptChanged(Body):
    """Number of matching dead letters or retries, and of changed ones."""

    matched: int
    changed: int


class Changed(KeptChanged):
    """Progress of a bulk call; with `as_of` and `next` another call can continue."""

    as_of: Seq
    next: Cursor | None


class Kept(Message, kw_only=True):
    """A message kept for one session or group. `subscription`: of a group, null for a session; `tries`: the
    last ones."""

    group: str
    subscription: str | None
    attempts: int
    reason: str
    tries: list[Try]


class DeadLetter(Kept, kw_only=True):
    """A message that a session or group has given up."""

    died_at: Instant


class DeadPage(CountedPage, kw_only=True):
    """Dead letters, ordered by the time at which they died."""

    messages: list[DeadLetter]


class WaitingRetry(Kept, kw_only=True):
    """A message that waits for its next try. `state` withheld: until its sender may send it, or `retry_at`,
    when it is given up."""

    retry_at: Instant


class RetryPage(CountedPage, kw_only=True):
    """Retries in the order of their next tries."""

    retries: list[WaitingRetry]


class LeasedMessage(Message, kw_only=True):
    """A message leased to you until `lease_until`. `filter`: of the group; `redelivered`: somebody may have
    had it before; `reason`: of the last failure, null on the first try; `tries`: the last failed ones."""

    filter: str
    attempt: int
    redelivered: bool
    reason: str | None
    tries: list[Try]
    lease_id: str
    lease_until: Instant


class LeasedMessages(Body):
    """The leased messages, at most as many as requested."""

    messages: list[LeasedMessage]


class Acked(Body):
    """Number of messages done; `gone`: leases that had ended, or are not yours. `ids`: of the follow-ups, if
    they were asked for; none if the lease is gone."""

    acked: int
    gone: list[str]
    ids: list[Id] | UnsetType = UNSET


class MessageResult(Body):
    """`outcome` of the message, and the result of the group that has one, as the worker sent it."""

    outcome: Outcome
    result: Any | UnsetType = UNSET
    ended_at: Instant | UnsetType = UNSET


class Released(Body):
    """Number of messages returned to the group; `gone`: leases that had ended."""

    released: int
    gone: list[str]


class Nacked(Body):
    """Number of messages to be redelivered, and of new dead letters; `gone`: leases that had ended."""

    nacked: int
    dead: int
    gone: list[str]


class Extended(Body):
    """Number of leases extended until `lease_until`; `gone`: leases that had ended."""

    extended: int
    lease_until: Instant
    gone: list[str]


class Position(Body):
    """A place on the timeline."""

    at: Instant
    seq: int


class MessageLocation(Body, kw_only=True):
    """Where a message is stored. A held one is in no slice."""

    id: Id
    position: Position
    held: bool
    slice: Instant | UnsetType = UNSET
    generation: int | UnsetType = UNSET
    shard: int | UnsetType = UNSET
    structure: str | UnsetType = UNSET
    borrowed: bool | UnsetType = UNSET
    in_wheel: bool
    enters_ram_at: Instant | None


# -- the timeline


class Bucket(Body):
    """`retries`: messages whose next try is in the bucket, on request."""

    at: Instant
    count: int
    retries: int | UnsetType = UNSET


class Density(Body):
    from_: Instant = field(name="from")
    to: Instant
    bucket_s: float
    buckets: list[Bucket]
    total: int


class CorruptRange(Body):
    """Positions between which messages cannot be read."""

    first: Position
    last: Position


class Shard(Body):
    """`cap`: maximum messages, `cap_bytes`: maximum bytes; `sealed`: it takes no more."""

    shard: int
    structure: str
    count: int
    live: int
    bytes: int
    cap: int
    cap_bytes: int
    first: Position | None
    last: Position | None
    borrowed: bool
    sealed: bool
    unreadable: list[CorruptRange]


class SliceNumbers(Body):
    """`count`: rows; `live`: without cancelled and moved ones; `borrowed`: number of borrowed shards;
    `unreadable`: number of corrupt ranges."""

    start: Instant
    end: Instant
    generation: int
    count: int
    live: int
    bytes: int
    count_is_exact: bool
    borrowed: int
    unreadable: int


class Slice(SliceNumbers):
    """A span of the timeline, and its number of shards."""

    shards: int


class SliceDetail(SliceNumbers):
    """A span of the timeline with its shards."""

    shards: list[Shard]


class HeldBy(Body):
    """The group or endpoint furthest behind, and for how many seconds a slice has been kept for it beyond its
    retention."""

    group: str
    seconds: int


class SlicePage(Page):
    """Slices by their start. `held_by`: null if no slice is kept beyond its retention."""

    slices: list[Slice]
    split_above: int
    held_by: HeldBy | None


# -- schedules


class Fire(Body):
    """One fire of a schedule; `note` says what DST or a move changed."""

    at: Instant
    local: str
    note: str | UnsetType = UNSET
    id: Id | UnsetType = UNSET


class Fires(Body):
    """Fires in order."""

    fires: list[Fire]


class DstPolicy(Body):
    """Handling of a local time that does not exist or exists twice (DST)."""

    gap: str
    overlap: str


class Silence(Body):
    """Until when a schedule sends nothing although its rule has earlier fires, and why."""

    until: Instant
    why: str


class ScheduleState(Body):
    """State of a schedule. `next` is on the timeline, `last` went out.

    `silent`: null if `next` is the next fire of the rule. `reason`: why it is stopped.
    """

    timezone: str
    dst: DstPolicy
    misfire: str
    state: Literal["active", "paused", "stopped", "finished"]
    created_at: Instant
    changed_at: Instant
    count: int
    next: Fire | None
    last: Fire | None
    silent: Silence | None
    reason: str | UnsetType = UNSET


class Schedule(ScheduleState, kw_only=True):
    """The definition as sent, with its defaults, and the state."""

    name: str
    topic: str | UnsetType = UNSET
    payload: Any | UnsetType = UNSET
    cron: str | UnsetType | None = UNSET
    every: str | float | UnsetType | None = UNSET
    rrule: str | UnsetType | None = UNSET


class SchedulePage(Page):
    """Schedules by name."""

    schedules: list[Schedule]


class Triggered(Body):
    """The message that was sent at once."""

    name: str
    id: Id
    deliver_at: Instant


# -- jobs


class Source(Body):
    """A shard that a job reads, with the slice's own counts of it."""

    start_ms: int
    generation: int
    shard: int
    structure: int
    count: int
    live: int


class JobSlice(Body):
    """A slice of a job."""

    start: Instant
    start_ms: int
    end_ms: int
    generation: int
    count: int
    live: int
    sources: list[Source]


class Child(Body):
    """A slice made by a split."""

    start_ms: int
    end_ms: int
    generation: int


class JobProgress(Body):
    """In the job's own unit."""

    done: int
    total: int


class NumberedFile(ArchivedFile, frozen=True, kw_only=True):
    """A file of the archive, and the number of the commit that brought it."""

    number: Count


class DamagedFiles(Body):
    """Files of a commit that are to be written again, by their paths."""

    number: int
    paths: list[str]


class ArchiveWork(Body, kw_only=True):
    """A job's work on the archive: the `number` of its commit, the positions `from_ms` to `to_ms` that it
    covers, or the `date` and `files` that it compacts.

    `timeline` and the `last` number: as the archive must have them; `unpublished`: commits whose manifests
    are to be written first; `again`: files to be written again; `manifests`: to be read back before a drop;
    `manifest`: to be published.
    """

    archive: str | UnsetType | None = UNSET
    archive_catalog: str | UnsetType = UNSET
    number: int | UnsetType = UNSET
    from_ms: int | UnsetType = UNSET
    to_ms: int | UnsetType = UNSET
    date: str | UnsetType = UNSET
    files: list[NumberedFile] | UnsetType = UNSET
    timeline: str | UnsetType = UNSET
    last: int | UnsetType = UNSET
    unpublished: list[Manifest] | UnsetType = UNSET
    again: list[DamagedFiles] | UnsetType = UNSET
    manifests: list[Manifest] | UnsetType = UNSET
    manifest: Manifest | UnsetType = UNSET


class JobView(ArchiveWork, kw_only=True):
    """A job. A split has `slice`, other jobs `slices`; an open job has a checkpoint, an ended one its end."""

    id: Id
    kind: str
    run: str
    state: str
    node: int
    lease_s: int
    created_at: Instant
    token: str | UnsetType = UNSET
    slice: JobSlice | UnsetType = UNSET
    parts: int | UnsetType | None = UNSET
    split_above: int | UnsetType = UNSET
    children: list[Child] | UnsetType = UNSET
    slices: list[JobSlice] | UnsetType = UNSET
    checkpoint: str | UnsetType = UNSET
    progress: JobProgress | UnsetType | None = UNSET
    ended_at: Instant | UnsetType = UNSET
    detail: str | UnsetType | None = UNSET
    rows: int | UnsetType = UNSET


class JobPage(Page):
    """Jobs, open ones first."""

    jobs: list[JobView]


class ArchivePage(Body):
    """Commits of the archive by number. `next`: the last one that was asked for so far."""

    manifests: list[Manifest]
    next: int


class Lease(Body):
    """A renewed job."""

    id: Id
    state: str
    lease_s: int


# -- sessions


class Subscription(Body):
    """A subscription of a session, and from when it counts."""

    filter: str
    qos: int
    since: Instant


class Lag(Body):
    """Lag of a session behind the horizon."""

    lag_messages: int
    lag_messages_is_exact: bool
    lag_seconds: float


class Undone(Body):
    """Unfinished messages of a place. `oldest_at`: due of the oldest."""

    lag: int
    in_flight: int
    retries: int
    next_retry_at: Instant | None
    oldest_at: Instant | None


class Skipped(Body):
    # How far a place was skipped forward. `undone`: what was unfinished before.
    from_: Instant = field(name="from")
    to: Instant
    undone: Undone


Expiry = int | Literal["never"]
Keep = float | Literal["failed", "all", "none"]


class Member(Body):
    """A session that is a member of a shared subscription."""

    client_id: str
    connected: bool
    qos: int
    in_flight: int


class PlaceStatus(Body):
    """The fields that sessions, groups and endpoints share.

    `position`: the read position. `delivered`, `failed`: deliveries and failed ones since the server started.
    `dead_letters`: of its name, counted up to 10,000, or 1,000 in a list. `left_at`: since when the session
    or all members are away, or the endpoint is paused; else missing. `expiry`: seconds that the place stays
    after that.
    """

    name: str
    position: Position
    lag_messages: int
    lag_messages_is_exact: bool
    lag_seconds: float
    in_flight: int
    delivered: int
    failed: int
    undone: Undone
    dead_letters: int
    expiry: Expiry
    incarnation: int
    left_at: Instant | UnsetType = UNSET


class Session(PlaceStatus, kw_only=True):
    """A client's subscriptions, and its read position. `client_id`, `read_position` and `expiry_s` are older
    names of `name`, `position` and `expiry`."""

    client_id: str
    connected: bool
    connected_at: Instant | UnsetType = UNSET
    expiry_s: Expiry
    subscriptions: list[Subscription]
    read_position: Position


class SessionPage(Page):
    """Sessions by client id."""

    sessions: list[Session]


class PerKey(Body):
    """Limits of each ordering key; 0: none. `rate` in messages a second."""

    concurrency: int
    rate: float


class Retry(Body):
    """When a message is tried again, seconds after each failure, and how often; 0: without limit."""

    max_attempts: int
    backoff: list[float]


class Group(PlaceStatus, kw_only=True):
    """A shared subscription and its members, if any. Durations in seconds; 0: for ever."""

    filter: str
    state: Literal["active", "paused"]
    members: list[Member]
    ack_timeout: float
    max_attempts: int
    backoff: list[float]
    rate: float
    """Messages a second; 0: no limit."""
    order: bool
    on_dead: Literal["next", "hold"]
    per_key: PerKey
    fair: bool
    keep: Keep
    result_ttl: float
    alerts: str | None
    """Endpoint that is told of dead letters and withheld messages."""
    keys_held: int
    """Ordering keys that a dead letter or somebody holds."""


class MadeGroup(Group):
    """A group that was made or changed. `warnings`: what is rarely meant."""

    warnings: list[str] | UnsetType = UNSET


class GroupKey(Body):
    """An ordering key that is behind or in trouble. `lag`: messages that wait for the key, counted up to
    1,000; `retry_at`: of the message that waits for its try; `held`: by a dead letter, or by hand; `id`: of
    the message that waits or is the dead letter; `oldest_at`: due of the oldest one that is not in flight."""

    key: str
    filter: str
    lag: int
    lag_is_exact: bool
    in_flight: int
    retry_at: Instant | None
    held: Literal["dead", "hand"] | None
    id: Id | None
    oldest_at: Instant | None


class GroupKeyPage(Page):
    """Ordering keys in trouble, the one with the most waiting messages first. `blocked`: how many there are;
    `held`: of them; `is_standing`: `limits.ordering_keys` is reached, and unread messages of further keys
    wait."""

    keys: list[GroupKey]
    blocked: int
    held: int
    is_standing: bool


class GroupPage(Page):
    """Groups by name and filter."""

    groups: list[Group]


# -- endpoints


class Secret(Body):
    """A signing secret, by its fingerprint; until then `former` is valid too."""

    fingerprint: str
    former: str | UnsetType = UNSET
    former_until: Instant | UnsetType = UNSET


class Failing(Body):
    """Results of an endpoint's last posts since the server started.

    `share`: failed part of the last `of` posts (up to 20), 0 to 1. `last_reason`: of the newest failure; null
    if none failed.
    """

    share: float
    of: int
    last_reason: str | None


class PostResult(Body):
    """Answer to a post. `at`: when the post had ended, by the machine's clock; `id`: the message; `status`
    null: there was none; `reason`: of a failure, null if the message is done; `seconds`: how long it took."""

    at: Instant
    id: Id
    status: int | None
    reason: str | None
    seconds: float


class EndpointPosts(Body, kw_only=True):
    """How an endpoint posts. `headers`: their names; `timeout`: seconds; `reason`: why it is paused."""

    name: str
    url: str
    state: Literal["active", "paused"]
    reason: str | UnsetType = UNSET
    secret: Secret | None
    headers: list[str]
    concurrency: int
    timeout: float
    body: Literal["raw", "envelope"]
    created_at: Instant
    changed_at: Instant


class Endpoint(EndpointPosts, kw_only=True):
    """A webhook endpoint and its read position. `rate`: messages a second, 0: no limit; `last_answers`: since
    the server started, newest first, up to 20, or 5 in a list. If its group could not be read, the fields of
    `PlaceStatus` are missing."""

    rate: float | UnsetType = UNSET
    order: bool | UnsetType = UNSET
    on_dead: Literal["next", "hold"] | UnsetType = UNSET
    per_key: PerKey | UnsetType = UNSET
    fair: bool | UnsetType = UNSET
    keep: Keep | UnsetType = UNSET
    result_ttl: float | UnsetType = UNSET
    alerts: str | UnsetType | None = UNSET
    keys_held: int | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    expiry: Expiry | UnsetType = UNSET
    position: Position | UnsetType = UNSET
    lag_messages: int | UnsetType = UNSET
    lag_messages_is_exact: bool | UnsetType = UNSET
    lag_seconds: float | UnsetType = UNSET
    in_flight: int | UnsetType = UNSET
    delivered: int | UnsetType = UNSET
    failed: int | UnsetType = UNSET
    undone: Undone | UnsetType = UNSET
    dead_letters: int | UnsetType = UNSET
    incarnation: int | UnsetType = UNSET
    left_at: Instant | UnsetType = UNSET
    failing: Failing
    last_answers: list[PostResult]


class EndpointPage(Page):
    """Endpoints by name."""

    endpoints: list[Endpoint]


class Tried(Body):
    """Result of one post. `status` null: no answer; `reason` null: it was accepted."""

    ok: bool
    status: int | None
    latency_ms: float
    reason: str | None
    webhook_id: str


# -- the server


class Figures(Body):
    """State of the server. A key that neither sees every message nor may receive `$SYS/broker/#` gets only
    `time`, `horizon` and `behind_ms`.

    `behind_ms`: how far dispatch is behind due messages; `lateness`: dispatched messages by lateness, as
    upper bounds in seconds (the last is "+Inf") and the count up to each.
    """

    time: Instant
    horizon: Instant
    behind_ms: int
    pending: int | UnsetType = UNSET
    held: int | UnsetType = UNSET
    dispatched: int | UnsetType = UNSET
    delivered: int | UnsetType = UNSET
    sessions: int | UnsetType = UNSET
    groups: int | UnsetType = UNSET
    schedules: int | UnsetType = UNSET
    dead_letters: int | UnsetType = UNSET
    slices: int | UnsetType = UNSET
    jobs_open: int | UnsetType = UNSET
    store_writable: bool | UnsetType = UNSET
    draining: bool | UnsetType = UNSET
    lateness: list[tuple[str, int]] | UnsetType = UNSET


class TailMessage(Body):
    """A message of `/v1/tail`. `id`: null if it is not stored; `is_cut`: `payload` has the first 1,024 of its
    `payload_bytes`, as text or base64."""

    id: Id | None
    topic: str
    deliver_at: Instant
    late_ms: int
    qos: int
    payload: Any
    encoding: Encoding
    payload_bytes: int
    is_cut: bool


class Lateness(Body):
    """Lateness of half of the messages, and of 99 of 100, ms: an upper bound, at most 3,600,000; null: none
    was dispatched."""

    p50_ms: int | None
    p99_ms: int | None


class GroupPoint(GroupSample, frozen=True, array_like=False):
    """A group or endpoint with messages that it has not finished, or has had. `done`, `dead`, `dropped`,
    `withheld`: its deliveries that came to that in the `seconds` before."""


class SessionPoint(SessionSample, frozen=True, array_like=False):
    """A session with messages that it has not read."""


class HistoryPoint(Body):
    """Figures at `at`, and what was counted in the `seconds` before. A key that does not see every message
    gets only `at`, `seconds` and `behind_ms`.

    `accepted`: over HTTP; `published`: over MQTT; `delivered`: to subscribers; `posted`: to endpoints;
    `retried`: tries that failed and come again; `died`: became dead letters; `unclaimed`: dispatched, and
    nobody asked for them; `dropped`: left unfinished, and no dead letters. `died_by_reason` and
    `retries_by_reason` have the most frequent reasons. `failing_endpoints`: share of the last posts that
    failed. `groups`, `sessions`: those furthest behind, at most 20 each. null: not known.
    """

    at: Instant
    seconds: float
    behind_ms: int
    accepted: int | UnsetType = UNSET
    published: int | UnsetType = UNSET
    dispatched: int | UnsetType = UNSET
    delivered: int | UnsetType = UNSET
    leased: int | UnsetType = UNSET
    posted: int | UnsetType = UNSET
    post_failures: int | UnsetType = UNSET
    retried: int | UnsetType = UNSET
    died: int | UnsetType = UNSET
    unclaimed: int | UnsetType = UNSET
    dropped: int | UnsetType = UNSET
    died_by_reason: dict[str, int] | UnsetType = UNSET
    lateness: Lateness | UnsetType = UNSET
    pending: int | UnsetType = UNSET
    retries: int | UnsetType = UNSET
    retries_by_reason: dict[str, int] | UnsetType = UNSET
    dead_letters: int | UnsetType = UNSET
    memory_bytes: int | UnsetType = UNSET
    store_bytes: int | UnsetType | None = UNSET
    disk_free_bytes: int | UnsetType | None = UNSET
    groups: list[GroupPoint] | UnsetType = UNSET
    sessions: list[SessionPoint] | UnsetType = UNSET
    failing_endpoints: dict[str, float] | UnsetType = UNSET


class History(Body):
    """Points in order. `since`: where the server's history begins; null: it has none yet."""

    since: Instant | None
    step_s: float
    points: list[HistoryPoint]


class Backup(Body):
    """Where the backup is."""

    dir: str


class Advanced(Body):
    """The simulated clock's new time."""

    now: Instant


class Listener(Body):
    """An address of MQTT. `url`: "mqtts://fasti.example.com:8883"; in `/v1/info` only."""

    transport: Literal["tcp", "tls", "ws", "wss"]
    host: str
    port: int
    url: str | UnsetType = UNSET


class Info(Body):
    """The server, its addresses of HTTP and MQTT."""

    version: str
    node: int
    clock: str
    build: Literal["pure", "compiled"]
    now: Instant
    url: str
    mqtt: list[Listener]
    draining: bool


class Status(Body):
    """Always well: an error is a problem. While the server drains, /readyz says so; else `draining` is
    missing."""

    status: Literal["ok", "draining"]
    draining: bool | UnsetType = UNSET


class Drain(Body):
    """Whether groups and endpoints are given nothing new, and since when (null: they are given messages).

    `out`: messages that workers have leased or not acked, and posts under way.
    """

    draining: bool
    since: Instant | None
    out: int
