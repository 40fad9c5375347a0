"""What the server answers, as types: the description is made from them, and mypy holds the views to them.

A member that is not always there is `NotRequired`; one that can be null says so.
"""

from typing import Any, Literal, NotRequired, TypedDict

from shards.state import State

from ...delivery.deliveries import DeliveryState
from .message_body import Encoding
from .scalars import Cursor, Id, Instant, Seq


class FieldProblem(TypedDict):
    """What is wrong with a field; `line` counts from 1, lines of NDJSON or items of an array."""

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
    """A message that is on disk now."""

    id: Id
    deliver_at: Instant
    state: State
    server_time: Instant


class Claims(TypedDict):
    """How many groups, endpoints and sessions would get a message if it was dispatched now."""

    groups: int
    endpoints: int
    sessions: int


class Posted(Scheduled):
    """The answer to a POST. `claims`: if they were asked for."""

    claims: NotRequired[Claims]


class Accepted(TypedDict):
    """A batch that is on disk now; the ids in the order of the items."""

    accepted: int
    ids: list[Id]


class Result(TypedDict, total=False):
    """What became of one item: its id or a problem; `replayed` and its state: it was there under its key."""

    id: Id
    replayed: Literal[True]
    state: State
    problem: Problem


class Results(TypedDict):
    """The items of a batch, in order."""

    results: list[Result]


class Message(TypedDict):
    """A message as it came in, with what became of it."""

    id: Id
    topic: str
    deliver_at: Instant
    state: State
    qos: int
    payload: NotRequired[Any]
    encoding: NotRequired[Encoding]
    deliver_to: NotRequired[str]
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
    """A delivery that came to nothing. `at`: when that was known; `by`: who had it, empty: nobody in
    particular; `seconds`: how long it was in hand, null: not known."""

    at: Instant
    by: str
    outcome: str
    reason: str
    seconds: float | None


class Delivery(TypedDict):
    """What has become of a message with one group (`group`, `filter`), or with one session.

    `attempts`: deliveries so far, where they are still known; `retry_at`: when it comes again; `reason`: why
    the last one came to nothing; `by`: who of the group has it; `lease_until`: for how long; `tries`: the
    last ones that came to nothing.
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
    """A message that was asked for alone. `deliveries`, of a dispatched one: to each group that it is for and
    to each session that has something left of it; `deliveries_truncated`: whether there are more.
    """

    deliveries: NotRequired[list[Delivery]]
    deliveries_truncated: NotRequired[bool]


class MessagePage(TypedDict):
    """Messages in position order."""

    messages: list[Message]
    next: Cursor | None
    count: NotRequired[int]


class Changed(TypedDict):
    """How far a bulk call has come; `as_of` and `next` let another one go on from there."""

    matched: int
    changed: int
    as_of: Seq
    next: Cursor | None


class Kept(Message):
    """A message that is kept for one session or group. `subscription`: of a group, null of a session;
    `tries`: the last ones."""

    group: str
    subscription: str | None
    attempts: int
    reason: str
    tries: list[Try]


class KeptPage(TypedDict):
    """`count`: of all pages, if it was asked for."""

    next: Cursor | None
    count: NotRequired[int]


class DeadLetter(Kept):
    """A message that a session or group has given up."""

    died_at: Instant


class DeadPage(KeptPage):
    """Dead letters, ordered by the time at which they died."""

    messages: list[DeadLetter]


class WaitingRetry(Kept):
    """A message that waits for its next try."""

    retry_at: Instant


class RetryPage(KeptPage):
    """Retries in the order of their next tries."""

    retries: list[WaitingRetry]


class KeptChanged(TypedDict):
    """How many dead letters or retries were found, and how many changed."""

    matched: int
    changed: int


class LeasedMessage(Message):
    """A message that is yours until `lease_until`. `filter`: of the group; `reason`: why the attempt before
    failed, null of the first one; `tries`: the last ones that failed."""

    filter: str
    attempt: int
    reason: str | None
    tries: list[Try]
    lease_id: str
    lease_until: Instant


class LeasedMessages(TypedDict):
    """What there was, at most as many as asked for."""

    messages: list[LeasedMessage]


class Acked(TypedDict):
    """How many are done with; `gone`: leases of what was finished before, or is not yours."""

    acked: int
    gone: list[str]


class Released(TypedDict):
    """How many others get now; `gone`: leases that are over."""

    released: int
    gone: list[str]


class Nacked(TypedDict):
    """How many come again, how many are dead letters; `gone`: leases that are over."""

    nacked: int
    dead: int
    gone: list[str]


class Extended(TypedDict):
    """How many are yours until `lease_until`; `gone`: leases that are over."""

    extended: int
    lease_until: Instant
    gone: list[str]


class Position(TypedDict):
    """A place on the timeline."""

    at: Instant
    seq: int


class Place(TypedDict):
    """Where a message lies. A held one is in no slice."""

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
    """`retries`: those that wait for a try then, if they were asked for."""

    at: Instant
    count: int
    retries: NotRequired[int]


Density = TypedDict(
    "Density", {"from": Instant, "to": Instant, "bucket_s": float, "buckets": list[Bucket], "total": int}
)


class Stretch(TypedDict):
    """Positions between which messages cannot be read."""

    first: Position
    last: Position


class Shard(TypedDict):
    """`cap`: most messages, `cap_bytes`: most bytes; `sealed`: it takes no more."""

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
    unreadable: list[Stretch]


class SliceNumbers(TypedDict):
    """`count`: rows; `live`: without cancelled and moved ones; `borrowed`: so many shards; `unreadable`: so
    many stretches of messages that cannot be read."""

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
    """A span of the timeline, and how many shards it has."""

    shards: int


class SliceDetail(SliceNumbers):
    """A span of the timeline with its shards."""

    shards: list[Shard]


class HeldBy(TypedDict):
    """The group or endpoint furthest behind, and for how many seconds a slice has been kept for it after its
    retention."""

    group: str
    seconds: int


class SlicePage(TypedDict):
    """Slices by their start. `held_by`: null if retention lets every slice go in its time."""

    slices: list[Slice]
    next: Cursor | None
    split_above: int
    held_by: HeldBy | None


# -- schedules


class Fire(TypedDict):
    """One time at which a schedule fires; `note` says what the clocks or a move changed."""

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
    """Until when a schedule sends nothing although its rule has fires before that, and why."""

    until: Instant
    why: str


class Standing(TypedDict):
    """What is told of a schedule besides what was sent. `next` is on the timeline, `last` went out.

    `silent`: null if `next` is the next fire of the rule.
    """

    timezone: str
    dst: DstPolicy
    misfire: str
    state: Literal["active", "paused", "finished"]
    created_at: Instant
    changed_at: Instant
    count: int
    next: Fire | None
    last: Fire | None
    silent: Silence | None


class Schedule(Standing):
    """The definition as it was sent, with the defaults, and how it stands."""

    name: str
    topic: NotRequired[str]
    payload: NotRequired[Any]
    cron: NotRequired[str | None]
    every: NotRequired[str | float | None]
    rrule: NotRequired[str | None]


class SchedulePage(TypedDict):
    """Schedules by name."""

    schedules: list[Schedule]
    next: Cursor | None


class Triggered(TypedDict):
    """The message that was sent at once."""

    name: str
    id: Id
    deliver_at: Instant


# -- jobs


class Source(TypedDict):
    """A shard that a job reads."""

    start_ms: int
    generation: int
    shard: int
    structure: int


class CountedSource(Source):
    """With what the slice holds of it."""

    count: int
    live: int


class JobSlice(TypedDict):
    """A slice that a job is about."""

    start: Instant
    start_ms: int
    end_ms: int
    generation: int
    count: int
    live: int
    sources: list[CountedSource]


class Child(TypedDict):
    """A slice that a split has made."""

    start_ms: int
    end_ms: int
    generation: int


class Progress(TypedDict):
    """In whatever the job counts."""

    done: int
    total: int


class JobView(TypedDict):
    """A job. A split has `slice`, an expiry `slices`; an open one has a checkpoint, an ended one its end."""

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
    checkpoint: NotRequired[str]
    progress: NotRequired[Progress | None]
    ended_at: NotRequired[Instant]
    detail: NotRequired[str | None]
    rows: NotRequired[int]


class JobPage(TypedDict):
    """Jobs, open ones first."""

    jobs: list[JobView]
    next: Cursor | None


class Lease(TypedDict):
    """A job that goes on."""

    id: Id
    state: str
    lease_s: int


# -- sessions


class Subscription(TypedDict):
    """What a session listens to, and since when."""

    filter: str
    qos: int
    since: Instant


class Lag(TypedDict):
    """How far a session is behind the horizon."""

    lag_messages: int
    lag_messages_is_exact: bool
    lag_seconds: float


class Undone(TypedDict):
    """What a place has not finished. `oldest_at`: when the oldest of it was due."""

    lag: int
    in_flight: int
    retries: int
    next_retry_at: Instant | None
    oldest_at: Instant | None


Skipped = TypedDict("Skipped", {"from": Instant, "to": Instant, "undone": Undone})
"""How far a place was set forward. `undone`: what it had not finished before."""


Expiry = int | Literal["never"]


class Member(TypedDict):
    """A session that holds a shared subscription."""

    client_id: str
    connected: bool
    qos: int
    in_flight: int


class Session(Lag):
    """A client's subscriptions, and how far they are read."""

    client_id: str
    connected: bool
    connected_at: NotRequired[Instant]
    left_at: NotRequired[Instant]
    expiry_s: Expiry
    subscriptions: list[Subscription]
    read_position: Position
    in_flight: int
    delivered: int
    undone: NotRequired[Undone]
    incarnation: NotRequired[int]


class SessionPage(TypedDict):
    """Sessions by client id."""

    sessions: list[Session]
    next: Cursor | None


class Group(Lag):
    """Those who divide the messages of a filter, who may be nobody. Durations in seconds; 0: for ever."""

    name: str
    filter: str
    state: Literal["active", "paused"]
    members: list[Member]
    left_at: NotRequired[Instant]
    position: Position
    in_flight: int
    delivered: int
    ack_timeout: float
    max_attempts: int
    backoff: list[float]
    expiry: Expiry
    rate: float
    undone: NotRequired[Undone]
    incarnation: NotRequired[int]


class GroupPage(TypedDict):
    """Groups by name and filter."""

    groups: list[Group]
    next: Cursor | None


# -- endpoints


class Secret(TypedDict):
    """What signs, by its fingerprint; `former` does too, until then."""

    fingerprint: str
    former: NotRequired[str]
    former_until: NotRequired[Instant]


class Retry(TypedDict):
    """When a message is tried again, seconds after each failure, and how often; 0: without end."""

    max_attempts: int
    backoff: list[float]


class Failing(TypedDict):
    """How the last posts of an endpoint went since the server started.

    `share`: of the last `of` posts, up to 20, those that failed, 0 to 1. `last_reason`: why the newest of
    these failed; null if none did.
    """

    share: float
    of: int
    last_reason: str | None


class Endpoint(TypedDict):
    """Where messages are posted, and how far it is. `headers`: their names; `timeout`: seconds; `rate`:
    messages a second, 0: any number; `reason`: why the server has paused it."""

    name: str
    url: str
    state: Literal["active", "paused"]
    reason: NotRequired[str]
    secret: Secret | None
    headers: list[str]
    concurrency: int
    timeout: float
    created_at: Instant
    changed_at: Instant
    rate: NotRequired[float]
    retry: NotRequired[Retry]
    expiry: NotRequired[Expiry]
    position: NotRequired[Position]
    lag_messages: NotRequired[int]
    lag_messages_is_exact: NotRequired[bool]
    lag_seconds: NotRequired[float]
    in_flight: NotRequired[int]
    delivered: NotRequired[int]
    undone: NotRequired[Undone]
    incarnation: NotRequired[int]
    failing: Failing


class EndpointPage(TypedDict):
    """Endpoints by name."""

    endpoints: list[Endpoint]
    next: Cursor | None


class Tried(TypedDict):
    """What came of one post. `status` null: no answer; `reason` null: it was taken."""

    ok: bool
    status: int | None
    latency_ms: float
    reason: str | None
    webhook_id: str


# -- the server


class Figures(TypedDict):
    """How the server stands. Who does not see every message is told `time`, `horizon` and `behind_ms` alone.

    `behind_ms`: how far dispatch is behind what is due; `lateness`: messages dispatched so far by how late
    they were, the upper bound in seconds ("+Inf" the last) and how many up to it.
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


class Backup(TypedDict):
    """Where the copy is."""

    dir: str


class Advanced(TypedDict):
    """What the simulated clock shows now."""

    now: Instant


class Info(TypedDict):
    """The server, and where MQTT listens."""

    version: str
    node: int
    clock: str
    build: Literal["pure", "compiled"]
    now: Instant
    mqtt: list[dict[str, Any]]


class Status(TypedDict):
    """Always ok: what is not is a problem."""

    status: str
