"""Types of all answers: the API's description is generated from them, and mypy checks the views against them.

A member that may be absent is `NotRequired`; one that can be null says so.
"""

from typing import Any, Literal, NotRequired, TypedDict

from shards.archives import ArchivedFile
from shards.state import State

from ...delivery.deliveries import DeliveryState
from ...delivery.payloads import Encoding
from .scalars import Cursor, Id, Instant, Seq


class FieldProblem(TypedDict):
    """An error in a field; `line` counts from 1: lines of NDJSON or items of an array."""

    field: str
    detail: str
    line: NotRequired[int]


class Problem(TypedDict):
    """RFC 9457; further members depend on the type."""

    type: str
    title: str
    status: int
    detail: NotRequired[str]
    errors: NotRequired[list[FieldProblem]]


# -- messages


class Scheduled(TypedDict):
    """A stored message."""

    id: Id
    deliver_at: Instant
    state: State
    server_time: Instant


class Claims(TypedDict):
    """Number of groups, endpoints and sessions that would get a message if it were dispatched now."""

    groups: int
    endpoints: int
    sessions: int


class Posted(Scheduled):
    """The answer to a POST. `claims`: on request."""

    claims: NotRequired[Claims]


class Upserted(TypedDict):
    """The message under a key after an upsert. `id` null: there is none, and the version is remembered."""

    id: Id | None
    state: State
    deliver_at: Instant | None
    changed: bool


class Accepted(TypedDict):
    """A stored batch; ids in the order of the items."""

    accepted: int
    ids: list[Id]


class Result(TypedDict, total=False):
    """Result of one item: its id or a problem; `replayed` and its state: the key was already known."""

    id: Id
    replayed: bool
    state: State
    problem: Problem


class Results(TypedDict):
    """Results of a batch's items, in order."""

    results: list[Result]


class Message(TypedDict):
    """A message as sent, and its state."""

    id: Id
    topic: str
    deliver_at: Instant
    state: State
    qos: int
    payload: NotRequired[Any]
    encoding: NotRequired[Encoding]
    deliver_to: NotRequired[str]
    ordering_key: NotRequired[str]
    local: NotRequired[str]
    schedule: NotRequired[str]
    dispatched_at: NotRequired[Instant]
    cancelled_at: NotRequired[Instant]
    retain: NotRequired[bool]
    late: NotRequired[str]
    expires_in: NotRequired[float]
    publisher: NotRequired[str]
    content_type: NotRequired[str]
    headers: NotRequired[dict[str, str]]


class Try(TypedDict):
    """A failed delivery. `at`: time of the failure; `by`: who had the message, empty: unknown; `seconds`: how
    long, null: unknown."""

    at: Instant
    by: str
    outcome: str
    reason: str
    seconds: float | None


class Delivery(TypedDict):
    """Delivery state of a message in one group (`group`, `filter`), or in one session.

    `attempts`: deliveries so far, if still known; `retry_at`: time of the next try; `reason`: of the last
    failure; `by`: the group's member that has it; `lease_until`: for how long; `tries`: the last failed ones.
    """

    group: NotRequired[str]
    filter: NotRequired[str]
    session: NotRequired[str]
    state: DeliveryState
    attempts: NotRequired[int]
    retry_at: NotRequired[Instant]
    reason: NotRequired[str]
    by: NotRequired[str]
    lease_until: NotRequired[Instant]
    tries: NotRequired[list[Try]]


class MessageShown(Message):
    """A single message. `deliveries`, of a dispatched one: for each of its groups, and for each session that
    has not finished it; `deliveries_truncated`: whether there are more.
    """

    deliveries: NotRequired[list[Delivery]]
    deliveries_truncated: NotRequired[bool]


class Page(TypedDict):
    """A part of a list. `next`: null at the end."""

    next: Cursor | None


class CountedPage(Page):
    """`count`: over all pages, on request."""

    count: NotRequired[int]


class MessagePage(CountedPage):
    """Messages in position order."""

    messages: list[Message]


class KeptChanged(TypedDict):
    """Number of matching dead letters or retries, and of changed ones."""

    matched: int
    changed: int


class Changed(KeptChanged):
    """Progress of a bulk call; with `as_of` and `next` another call can continue."""

    as_of: Seq
    next: Cursor | None


class Kept(Message):
    """A message kept for one session or group. `subscription`: of a group, null for a session; `tries`: the
    last ones."""

    group: str
    subscription: str | None
    attempts: int
    reason: str
    tries: list[Try]


class DeadLetter(Kept):
    """A message that a session or group has given up."""

    died_at: Instant


class DeadPage(CountedPage):
    """Dead letters, ordered by the time at which they died."""

    messages: list[DeadLetter]


class WaitingRetry(Kept):
    """A message that waits for its next try."""

    retry_at: Instant


class RetryPage(CountedPage):
    """Retries in the order of their next tries."""

    retries: list[WaitingRetry]


class LeasedMessage(Message):
    """A message leased to you until `lease_until`. `filter`: of the group; `reason`: of the last failure,
    null on the first try; `tries`: the last failed ones."""

    filter: str
    attempt: int
    reason: str | None
    tries: list[Try]
    lease_id: str
    lease_until: Instant


class LeasedMessages(TypedDict):
    """The leased messages, at most as many as requested."""

    messages: list[LeasedMessage]


class Acked(TypedDict):
    """Number of messages done; `gone`: leases that had ended, or are not yours. `ids`: of the follow-ups, if
    they were asked for; none if the lease is gone."""

    acked: int
    gone: list[str]
    ids: NotRequired[list[Id]]


class Released(TypedDict):
    """Number of messages returned to the group; `gone`: leases that had ended."""

    released: int
    gone: list[str]


class Nacked(TypedDict):
    """Number of messages to be redelivered, and of new dead letters; `gone`: leases that had ended."""

    nacked: int
    dead: int
    gone: list[str]


class Extended(TypedDict):
    """Number of leases extended until `lease_until`; `gone`: leases that had ended."""

    extended: int
    lease_until: Instant
    gone: list[str]


class Position(TypedDict):
    """A place on the timeline."""

    at: Instant
    seq: int


class Place(TypedDict):
    """Where a message is stored. A held one is in no slice."""

    id: Id
    position: Position
    held: bool
    slice: NotRequired[Instant]
    generation: NotRequired[int]
    shard: NotRequired[int]
    structure: NotRequired[str]
    borrowed: NotRequired[bool]
    in_wheel: bool
    enters_ram_at: Instant | None


# -- the timeline


class Bucket(TypedDict):
    """`retries`: messages whose next try is in the bucket, on request."""

    at: Instant
    count: int
    retries: NotRequired[int]


Density = TypedDict(
    "Density", {"from": Instant, "to": Instant, "bucket_s": float, "buckets": list[Bucket], "total": int}
)


class CorruptRange(TypedDict):
    """Positions between which messages cannot be read."""

    first: Position
    last: Position


class Shard(TypedDict):
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


class SliceNumbers(TypedDict):
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


class HeldBy(TypedDict):
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


class Fire(TypedDict):
    """One fire of a schedule; `note` says what DST or a move changed."""

    at: Instant
    local: str
    note: NotRequired[str]
    id: NotRequired[Id]


class Fires(TypedDict):
    """Fires in order."""

    fires: list[Fire]


class DstPolicy(TypedDict):
    """Handling of a local time that does not exist or exists twice (DST)."""

    gap: str
    overlap: str


class Silence(TypedDict):
    """Until when a schedule sends nothing although its rule has earlier fires, and why."""

    until: Instant
    why: str


class ScheduleState(TypedDict):
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
    reason: NotRequired[str]


class Schedule(ScheduleState):
    """The definition as sent, with its defaults, and the state."""

    name: str
    topic: NotRequired[str]
    payload: NotRequired[Any]
    cron: NotRequired[str | None]
    every: NotRequired[str | float | None]
    rrule: NotRequired[str | None]


class SchedulePage(Page):
    """Schedules by name."""

    schedules: list[Schedule]


class Triggered(TypedDict):
    """The message that was sent at once."""

    name: str
    id: Id
    deliver_at: Instant


# -- jobs


class Source(TypedDict):
    """A shard that a job reads, with the slice's own counts of it."""

    start_ms: int
    generation: int
    shard: int
    structure: int
    count: int
    live: int


class JobSlice(TypedDict):
    """A slice of a job."""

    start: Instant
    start_ms: int
    end_ms: int
    generation: int
    count: int
    live: int
    sources: list[Source]


class Child(TypedDict):
    """A slice made by a split."""

    start_ms: int
    end_ms: int
    generation: int


class Progress(TypedDict):
    """In the job's own unit."""

    done: int
    total: int


class JobView(TypedDict):
    """A job. A split has `slice`, an expiry `slices`; an open job has a checkpoint, an ended one its end."""

    id: Id
    kind: str
    run: str
    state: str
    node: int
    lease_s: int
    created_at: Instant
    token: NotRequired[str]
    slice: NotRequired[JobSlice]
    parts: NotRequired[int | None]
    split_above: NotRequired[int]
    children: NotRequired[list[Child]]
    slices: NotRequired[list[JobSlice]]
    archive: NotRequired[str | None]
    files: NotRequired[list[ArchivedFile]]
    checkpoint: NotRequired[str]
    progress: NotRequired[Progress | None]
    ended_at: NotRequired[Instant]
    detail: NotRequired[str | None]
    rows: NotRequired[int]


class JobPage(Page):
    """Jobs, open ones first."""

    jobs: list[JobView]


class Lease(TypedDict):
    """A renewed job."""

    id: Id
    state: str
    lease_s: int


# -- sessions


class Subscription(TypedDict):
    """A subscription of a session, and from when it counts."""

    filter: str
    qos: int
    since: Instant


class Lag(TypedDict):
    """Lag of a session behind the horizon."""

    lag_messages: int
    lag_messages_is_exact: bool
    lag_seconds: float


class Undone(TypedDict):
    """Unfinished messages of a place. `oldest_at`: due of the oldest."""

    lag: int
    in_flight: int
    retries: int
    next_retry_at: Instant | None
    oldest_at: Instant | None


Skipped = TypedDict("Skipped", {"from": Instant, "to": Instant, "undone": Undone})
"""How far a place was skipped forward. `undone`: what was unfinished before."""


Expiry = int | Literal["never"]


class Member(TypedDict):
    """A session that is a member of a shared subscription."""

    client_id: str
    connected: bool
    qos: int
    in_flight: int


class PlaceShown(Lag):
    """The fields that sessions, groups and endpoints share.

    `position`: the read position. `delivered`, `failed`: deliveries and failed ones since the server started.
    `dead_letters`: of its name, counted up to 10,000, or 1,000 in a list. `left_at`: since when the session
    or all members are away, or the endpoint is paused; else missing. `expiry`: seconds that the place stays
    after that.
    """

    name: str
    position: Position
    in_flight: int
    delivered: int
    failed: int
    undone: Undone
    dead_letters: int
    expiry: Expiry
    incarnation: int
    left_at: NotRequired[Instant]


class Connected(TypedDict, total=False):
    """Since when a session is connected; missing while it is not."""

    connected_at: Instant


class Session(PlaceShown, Connected):
    """A client's subscriptions, and its read position. `client_id`, `read_position` and `expiry_s` are older
    names of `name`, `position` and `expiry`."""

    client_id: str
    connected: bool
    expiry_s: Expiry
    subscriptions: list[Subscription]
    read_position: Position


class SessionPage(Page):
    """Sessions by client id."""

    sessions: list[Session]


class PerKey(TypedDict):
    """Limits of each ordering key; 0: none. `rate` in messages a second."""

    concurrency: int
    rate: float


class Keeping(TypedDict):
    """What a group or endpoint does with its messages. `rate`: messages a second; 0: no limit. `keys_held`:
    ordering keys that a dead letter or somebody holds."""

    rate: float
    order: bool
    on_dead: Literal["next", "hold"]
    per_key: PerKey
    fair: bool
    keys_held: int


class Retry(TypedDict):
    """When a message is tried again, seconds after each failure, and how often; 0: without limit."""

    max_attempts: int
    backoff: list[float]


class Group(PlaceShown, Retry, Keeping):
    """A shared subscription and its members, if any. Durations in seconds; 0: for ever."""

    filter: str
    state: Literal["active", "paused"]
    members: list[Member]
    ack_timeout: float


class MadeGroup(Group):
    """A group that was made or changed. `warnings`: what is rarely meant."""

    warnings: NotRequired[list[str]]


class GroupKey(TypedDict):
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


class Secret(TypedDict):
    """A signing secret, by its fingerprint; until then `former` is valid too."""

    fingerprint: str
    former: NotRequired[str]
    former_until: NotRequired[Instant]


class Failing(TypedDict):
    """Results of an endpoint's last posts since the server started.

    `share`: failed part of the last `of` posts (up to 20), 0 to 1. `last_reason`: of the newest failure; null
    if none failed.
    """

    share: float
    of: int
    last_reason: str | None


class Answer(TypedDict):
    """Answer to a post. `at`: when the post had ended, by the machine's clock; `id`: the message; `status`
    null: there was none; `reason`: of a failure, null if the message is done; `seconds`: how long it took."""

    at: Instant
    id: Id
    status: int | None
    reason: str | None
    seconds: float


class Endpoint(TypedDict):
    """A webhook endpoint and its read position. `headers`: their names; `timeout`: seconds; `rate`: messages
    a second, 0: no limit; `reason`: why the server has paused it; `last_answers`: since the server started,
    newest first, up to 20, or 5 in a list. If its group could not be read, the fields of `PlaceShown` are
    missing."""

    name: str
    url: str
    state: Literal["active", "paused"]
    reason: NotRequired[str]
    secret: Secret | None
    headers: list[str]
    concurrency: int
    timeout: float
    body: Literal["raw", "envelope"]
    created_at: Instant
    changed_at: Instant
    rate: NotRequired[float]
    order: NotRequired[bool]
    on_dead: NotRequired[Literal["next", "hold"]]
    per_key: NotRequired[PerKey]
    fair: NotRequired[bool]
    keys_held: NotRequired[int]
    retry: NotRequired[Retry]
    expiry: NotRequired[Expiry]
    position: NotRequired[Position]
    lag_messages: NotRequired[int]
    lag_messages_is_exact: NotRequired[bool]
    lag_seconds: NotRequired[float]
    in_flight: NotRequired[int]
    delivered: NotRequired[int]
    failed: NotRequired[int]
    undone: NotRequired[Undone]
    dead_letters: NotRequired[int]
    incarnation: NotRequired[int]
    left_at: NotRequired[Instant]
    failing: Failing
    last_answers: list[Answer]


class EndpointPage(Page):
    """Endpoints by name."""

    endpoints: list[Endpoint]


class Tried(TypedDict):
    """Result of one post. `status` null: no answer; `reason` null: it was accepted."""

    ok: bool
    status: int | None
    latency_ms: float
    reason: str | None
    webhook_id: str


# -- the server


class Figures(TypedDict):
    """State of the server. A key that neither sees every message nor may receive `$SYS/broker/#` gets only
    `time`, `horizon` and `behind_ms`.

    `behind_ms`: how far dispatch is behind due messages; `lateness`: dispatched messages by lateness, as
    upper bounds in seconds (the last is "+Inf") and the count up to each.
    """

    time: Instant
    horizon: Instant
    behind_ms: int
    pending: NotRequired[int]
    held: NotRequired[int]
    dispatched: NotRequired[int]
    delivered: NotRequired[int]
    sessions: NotRequired[int]
    groups: NotRequired[int]
    schedules: NotRequired[int]
    dead_letters: NotRequired[int]
    slices: NotRequired[int]
    jobs_open: NotRequired[int]
    store_writable: NotRequired[bool]
    lateness: NotRequired[list[tuple[str, int]]]


class TailMessage(TypedDict):
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


class Lateness(TypedDict):
    """Lateness of half of the messages, and of 99 of 100, ms: an upper bound, at most 3,600,000; null: none
    was dispatched."""

    p50_ms: int | None
    p99_ms: int | None


class GroupPoint(Lag):
    """A group or endpoint with messages that it has not finished."""

    group: str
    filter: str
    in_flight: int
    retries: int


class SessionPoint(Lag):
    """A session with messages that it has not read."""

    session: str
    in_flight: int
    retries: int


class HistoryPoint(TypedDict):
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
    accepted: NotRequired[int]
    published: NotRequired[int]
    dispatched: NotRequired[int]
    delivered: NotRequired[int]
    leased: NotRequired[int]
    posted: NotRequired[int]
    post_failures: NotRequired[int]
    retried: NotRequired[int]
    died: NotRequired[int]
    unclaimed: NotRequired[int]
    dropped: NotRequired[int]
    died_by_reason: NotRequired[dict[str, int]]
    lateness: NotRequired[Lateness]
    pending: NotRequired[int]
    retries: NotRequired[int]
    retries_by_reason: NotRequired[dict[str, int]]
    dead_letters: NotRequired[int]
    memory_bytes: NotRequired[int]
    store_bytes: NotRequired[int | None]
    disk_free_bytes: NotRequired[int | None]
    groups: NotRequired[list[GroupPoint]]
    sessions: NotRequired[list[SessionPoint]]
    failing_endpoints: NotRequired[dict[str, float]]


class History(TypedDict):
    """Points in order. `since`: where the server's history begins; null: it has none yet."""

    since: Instant | None
    step_s: float
    points: list[HistoryPoint]


class Backup(TypedDict):
    """Where the backup is."""

    dir: str


class Advanced(TypedDict):
    """The simulated clock's new time."""

    now: Instant


class Listener(TypedDict):
    """An address of MQTT. `url`: "mqtts://fasti.example.com:8883"; in `/v1/info` only."""

    transport: Literal["tcp", "tls", "ws", "wss"]
    host: str
    port: int
    url: NotRequired[str]


class Info(TypedDict):
    """The server, its addresses of HTTP and MQTT."""

    version: str
    node: int
    clock: str
    build: Literal["pure", "compiled"]
    now: Instant
    url: str
    mqtt: list[Listener]


class Status(TypedDict):
    """Always ok: an error is a problem."""

    status: str
