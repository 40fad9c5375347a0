"""Calls for leases: requests and answers, for the routes and the front.

Nothing here waits: results that need messages or the disk come by a callback.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from shards.record import ENCODINGS, REASON_BYTES_MAX
from shards.state import DISPATCHED
from timeline.deliveries import NEVER
from timeline.filters import TopicError, parse_share

from ..delivery.membership import Membership, UnknownGroup
from ..delivery.payloads import Encoding, payload_view
from ..delivery.progress import BYTES_MAX as PROGRESS_BYTES
from ..delivery.subscriptions import Subscriptions
from ..delivery.tries import tries_before, tries_view
from ..pull.call import Call, LeaseAnswer, Leased, LeaseRequest
from ..pull.lease_id import BadLeaseId, LeaseId, lease_heads, lease_tail, lease_text, parse_leases
from ..pull.pull import Pull, Settled
from ..settings.config import ACK_MS_MAX, Config
from ..settings.durations import NEVER_TEXT
from ..settings.times import time_text
from .access import Rights, is_own
from .problems import Problem
from .values import shapes
from .values.bodies import FieldError, decoded, delay_ms
from .values.group_body import text_of
from .values.message_body import Item
from .values.scalars import Delay, named, without
from .values.scalars import Filter as TopicFilter
from .values.views import message_view

MAX_MAX = 1_000
GROUPS_MAX = 100
"""Maximum groups asked by one call; the next call continues behind them."""
WAIT_MAX_MS = 60_000
THEN_MAX = 100
"""Maximum follow-ups of an ack: one step of the writer, 2 ms."""
LEASE_MIN_MS = 1_000
RESULT_BYTES = 64 << 10

LeaseIds = Annotated[list[str], msgspec.Meta(max_length=MAX_MAX, description="as `:lease` gave them")]


class LeaseMessages(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `:lease`."""

    max: Annotated[int, msgspec.Meta(ge=1, le=MAX_MAX)]
    filter: TopicFilter | None = None
    wait: Delay | None = None
    lease: Delay | None = None


FollowUp = Annotated[Item, named("FollowUp"), without("id", "key_scope")]
"""A follow-up, as described."""


class LeaseIdsBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of each call on leases."""

    lease_ids: LeaseIds


class AckMessages(LeaseIdsBody):
    """The body of `:ack`. `then`: messages that follow from that of the one lease; `result`: of its work."""

    then: Annotated[list[FollowUp], msgspec.Meta(max_length=THEN_MAX)] = []
    result: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class ReleaseMessages(LeaseIdsBody):
    """The body of `:release`."""


class NackMessages(LeaseIdsBody):
    """The body of `:nack`. `delay` null: the group's back-off; "never": dead letters at once."""

    delay: Delay | None = None
    reason: Annotated[str, msgspec.Meta(max_length=REASON_BYTES_MAX)] | None = None


class ExtendLeases(LeaseIdsBody):
    """The body of `:extend`: new lease from now. `progress`: how far the work of the one lease is."""

    lease: Delay
    progress: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


_LEASE = msgspec.json.Decoder(LeaseMessages)
_ACK = msgspec.json.Decoder(AckMessages)
_SETTLING: dict[str, msgspec.json.Decoder[Any]] = {
    "ack": _ACK,
    "nack": msgspec.json.Decoder(NackMessages),
    "extend": msgspec.json.Decoder(ExtendLeases),
    "release": msgspec.json.Decoder(ReleaseMessages),
}
"""By verb."""
SettledView = Callable[[Settled, list[str]], shapes.Body]
"""The answer; the second argument: leases that had ended."""
Answered = Callable[[bytes | Exception], None]
"""Callback with the body of the answer, or the error."""


class LeaseCall(NamedTuple):
    """A `:lease` call. `filter`: of the named group, which is created if missing."""

    filter: str | None
    request: LeaseRequest


class Leasing:
    """Reads and executes calls for leases."""

    def __init__(
        self, pull: Pull, groups: Membership, subscriptions: Subscriptions, config: Config, *, node: int
    ) -> None:
        self._pull = pull
        self._groups = groups
        self._subscriptions = subscriptions
        self._config = config
        self._node = node
        self._first = 0
        """Index of the group to ask first, advanced with each call."""

    # -- leasing

    def call_of(self, raw: bytes) -> LeaseCall:
        """Parse a `:lease` body. Raises RequestError."""
        body = decoded(raw, _LEASE)
        wait_ms = 0 if body.wait is None else delay_ms("wait", body.wait)
        if wait_ms > WAIT_MAX_MS:
            raise FieldError("wait", f"must be at most {WAIT_MAX_MS // 1_000} s")
        lease_ms = None if body.lease is None else self._lease_ms(body.lease)
        return LeaseCall(body.filter, LeaseRequest(body.max, wait_ms, lease_ms))

    def text_of(self, name: str, topic_filter: str, rights: Rights | None) -> str:
        """The full name of the group with that name and filter, existing or not. Raises Problem,
        FieldError."""
        text = text_of(name, topic_filter, self._config)
        if not self._subscriptions.may_ask(topic_filter, rights):
            raise Problem("forbidden", f"The filter {topic_filter[:128]!r} may not be subscribed to.")
        return text

    def is_there(self, text: str) -> bool:
        """Whether the group exists."""
        return self._groups.get(text) is not None

    def texts(self, name: str, rights: Rights | None) -> Sequence[str]:
        """The groups of that name, beginning with another one each time. Raises Problem."""
        texts = [
            group.text
            for group in self._groups.of_name(name)
            if is_own(rights, group) and _may_lease(rights, parse_share(group.text)[1])
        ]
        if not texts:
            raise Problem("not-found", f"Group {name[:128]!r} not found; give `filter` to create it.")
        first = self._first % len(texts)
        some = (texts[first:] + texts[:first])[:GROUPS_MAX]
        self._first += len(some) if len(some) < len(texts) else 1
        return some

    def lease(
        self,
        name: str,
        texts: Sequence[str],
        rights: Rights | None,
        request: LeaseRequest,
        is_gone: Callable[[], bool],
        answered: Callable[[Call, LeaseAnswer], None],
    ) -> Call:
        """Lease messages of these groups, as `Pull.lease`. Raises Busy, Problem."""
        try:
            return self._pull.lease(name, texts, rights, request, is_gone, answered)
        except UnknownGroup as error:
            raise Problem("not-found", str(error)) from None

    def done(self, call: Call, *, is_read: bool) -> None:
        """The answer has been written; if it was not read, its messages go to others."""
        if is_read:
            self._pull.release(call)
        else:
            self._pull.abandon(call)

    def views(self, leased: Sequence[Leased]) -> Iterator[shapes.LeasedMessage]:
        shared: dict[tuple[str, int], _Shared] = {}
        heads = lease_heads(
            [(one.number, one.given.message.position, one.given.message.shard) for one in leased]
        )
        for one, head in zip(leased, heads, strict=True):
            key = (one.given.text, one.until_ms)
            if key not in shared:
                shared[key] = _shared_of(one, self._node)
            yield shared[key].view(one, head)

    # -- settling leases

    def followed(self, name: str, raw: bytes, rights: Rights | None) -> tuple[LeaseId, bool] | None:
        """The lease of an `:ack` with follow-ups or a result, and whether it is the caller's; None: it has
        neither. Raises RequestError."""
        body = decoded(raw, _ACK)
        if not _beside(body, "result", body.result, RESULT_BYTES) and not body.then:
            return None
        if len(set(body.lease_ids)) != 1:
            raise FieldError("then", "goes with exactly one of lease_ids")
        mine, _ = self._sorted(name, rights, body.lease_ids)
        return (mine[0], True) if mine else (parse_leases(body.lease_ids[:1])[0], False)

    def settle(self, verb: str, name: str, raw: bytes, rights: Rights | None, answered: Answered) -> None:
        """Execute a verb on leases. Raises RequestError, Problem, Busy, with nothing done."""
        body = decoded(raw, _SETTLING[verb])
        act, view = self._settling(body)
        mine, others = self._sorted(name, rights, body.lease_ids)

        def done(settled: Settled) -> None:
            if settled.error is not None:
                answered(settled.error)
            else:
                gone = [*others, *map(lease_text, settled.gone)]
                answered(msgspec.json.encode(view(settled, gone)))

        act(mine, done=done, rights=rights)

    def _settling(self, body: LeaseIdsBody) -> tuple[Callable[..., None], SettledView]:
        """What the pull does, and how it is answered. Raises RequestError."""
        pull = self._pull
        match body:
            case AckMessages():
                if body.then or bytes(body.result):
                    raise FieldError("then", "has to wait, as a result has: the route alone acks with it")
                return pull.ack, lambda settled, gone: shapes.Acked(settled.done, gone)
            case NackMessages():
                delay_ms = _nack_ms(body.delay)
                if delay_ms is not None and delay_ms > self._config.limits.max_delay_ms:
                    raise FieldError("delay", "is further ahead than limits.max_delay")
                nack = partial(pull.nack, delay_ms=delay_ms, reason=body.reason or "")
                return nack, lambda settled, gone: shapes.Nacked(settled.done, settled.dead, gone)
            case ExtendLeases():
                progress = _beside(body, "progress", body.progress, PROGRESS_BYTES)
                extend = partial(pull.extend, lease_ms=self._lease_ms(body.lease), progress=progress)
                return extend, lambda settled, gone: shapes.Extended(
                    settled.done, time_text(settled.until_ms), gone
                )
        return pull.release_leases, lambda settled, gone: shapes.Released(settled.done, gone)

    def _lease_ms(self, text: str | float) -> int:
        """Parse a lease time. Raises FieldError."""
        lease_ms = delay_ms("lease", text)
        if not LEASE_MIN_MS <= lease_ms <= ACK_MS_MAX:
            raise FieldError("lease", f"must be from 1 s to {ACK_MS_MAX // 1_000} s")
        return lease_ms

    def _sorted(
        self, name: str, rights: Rights | None, lease_ids: Sequence[str]
    ) -> tuple[list[LeaseId], list[str]]:
        """The caller's leases, each once, and the others. Raises FieldError."""
        try:
            leases = parse_leases(dict.fromkeys(lease_ids))
            of_groups = {lease.text: lease for lease in leases}
            filters = {text: _filter_of(lease, name) for text, lease in of_groups.items()}
        except BadLeaseId as error:
            raise FieldError("lease_ids", str(error)) from None
        may = {text for text, topic_filter in filters.items() if _may_lease(rights, topic_filter)}
        others = [lease_text(lease) for lease in leases if lease.text not in may]
        return [lease for lease in leases if lease.text in may] if others else leases, others


class _Shared(NamedTuple):
    """Shared by the leases of a group in one answer."""

    node: int
    filter: str
    tail: str
    """End of their `lease_id`."""
    until: str
    times: dict[int, str]
    """Texts of due times."""
    models: dict[bytes, tuple[shapes.LeasedMessage, Encoding]]
    """Views of first tries, by `Message.likeness`, and how the payload came in."""

    def view(self, leased: Leased, head: str) -> shapes.LeasedMessage:
        """Written for speed: of messages that are alike only one is looked at as a whole. `head`: of its
        `lease_id`."""
        message = leased.given.message
        alike = b"" if leased.given.is_redelivered else message.likeness
        model = self.models.get(alike)
        if model is None:
            view = self._whole(leased, head)
            if alike:
                self.models[alike] = view, ENCODINGS[message.record.encoding]
            return view
        due_ms = message.due_ms
        due = self.times.get(due_ms) or self.times.setdefault(due_ms, time_text(due_ms))
        payload, encoding = payload_view(message.payload, model[1])
        return replace(
            model[0],
            id=message.id_text(self.node),
            deliver_at=due,
            payload=payload,
            encoding=encoding,
            lease_id=head + self.tail,
        )

    def _whole(self, leased: Leased, head: str) -> shapes.LeasedMessage:
        given = leased.given
        message = given.message
        record, place = message.record, message.position
        retry = record.retry
        tries = tries_before(message, given.attempt - message.attempts_before)
        return message_view(
            shapes.LeasedMessage,
            message.id(self.node),
            place,
            record,
            DISPATCHED,
            filter=self.filter,
            attempt=given.attempt,
            redelivered=given.is_redelivered,
            reason=None if retry is None else retry.reason.decode(errors="replace"),
            tries=tries_view(tries),
            lease_id=head + self.tail,
            lease_until=self.until,
        )


def _shared_of(leased: Leased, node: int) -> _Shared:
    text = leased.given.text
    return _Shared(node, parse_share(text)[1], lease_tail(text), time_text(leased.until_ms), {}, {})


def _beside(body: LeaseIdsBody, field: str, value: msgspec.Raw, bytes_max: int) -> bytes:
    """JSON of the one lease, as it came; empty: none. Raises FieldError."""
    found = bytes(value)
    if found and len(set(body.lease_ids)) != 1:
        raise FieldError(field, "goes with exactly one of lease_ids")
    if len(found) > bytes_max:
        raise FieldError(field, f"has {len(found):,} bytes, more than {bytes_max:,}")
    return found


def _nack_ms(delay: str | float | None) -> int | None:
    """Parse a delay. Raises FieldError."""
    if delay is None:
        return None
    return NEVER if delay == NEVER_TEXT else delay_ms("delay", delay)


def _filter_of(lease: LeaseId, name: str) -> str:
    """The filter of its group, which has that name. Raises BadLeaseId."""
    try:
        group, topic_filter = parse_share(lease.text)
    except TopicError:
        group = None
    if group is None:
        raise BadLeaseId(f"{lease_text(lease)[:40]!r} is not a lease_id")
    if group != name:
        raise BadLeaseId(f"{lease_text(lease)[:40]!r} is of the group {group[:64]!r}")
    return topic_filter


def _may_lease(rights: Rights | None, topic_filter: str) -> bool:
    return rights is None or rights.may_subscribe(topic_filter)
