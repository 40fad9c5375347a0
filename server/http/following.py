"""`:ack` with `then` or `result`: a leased message is done, and these are stored, in one batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import msgspec

from shards.commit import Commit
from shards.dedupe import Refused
from shards.draft import AS_EVER, Draft, Known
from timeline.position import MessageId
from timeline.session import Flight

from ..auth.rights import SCHEDULE
from ..delivery.settling.settling import Settling
from ..engine.clock import Clock
from ..observe.metrics import Metrics
from ..observe.trace_context import Headers
from ..observe.tracing import Traces
from ..pull.lease_id import LeaseId
from ..settings.config import Limits
from .access import Rights
from .answers import refusal, refusals
from .intake import Coming, Intake, Trace, Wrong
from .posting import Given, Placed, place
from .problems import Problem
from .turns import Turn
from .values.bodies import FieldError
from .values.reader import Item, Reader


class ThenRaws(msgspec.Struct):
    """The follow-ups and the result as sent."""

    then: list[msgspec.Raw] = []
    result: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


_THEN = msgspec.json.Decoder(ThenRaws)


@dataclass(frozen=True, slots=True, eq=False)
class Following:
    """Acks messages together with their follow-ups."""

    settling: Settling
    intake: Intake
    clock: Clock
    limits: Limits
    metrics: Metrics
    traces: Traces | None

    async def ack(
        self, raw: bytes, lease: LeaseId, rights: Rights | None, context: Headers, turn: Turn
    ) -> list[MessageId] | None:
        """Ack a leased message; returns the ids of its follow-ups, None: the lease is gone, and nothing is
        done. Raises Problem, RequestError."""
        body = _THEN.decode(raw)
        if body.then and rights is not None and not rights.principal.has(SCHEDULE):
            raise Problem("forbidden", f"Key '{rights.name}' lacks the scope '{SCHEDULE}'.")
        trace, now_ms = Trace(self.traces, context), self.clock.wall_ms()
        user = "" if rights is None else rights.name
        reader = Reader(now_ms, self.limits, user, trace.context)
        items: list[Item | Wrong] = list(_read(reader, body.then))
        decide = partial(self._decide, lease=lease, rights=rights, result=bytes(body.result) or None)
        coming = Coming(items, reader.topics.values(), now_ms, AS_EVER, rights, turn, trace, decide, _refuse)
        with trace, refusals():
            try:
                _, placed = await self.intake.take(coming)
            except Refused as error:
                raise refusal(error, error.index + 1) from None
            trace.placed = placed or [0] * len(items)
        if placed is None:
            return None
        self.metrics.accepted.inc(sum(not isinstance(one, Known) for one in placed))
        return [one.id if isinstance(one, Known) else one for one in placed]

    def _decide(
        self,
        commit: Commit,
        drafts: Sequence[Draft],
        lease: LeaseId,
        rights: Rights | None,
        given: Given,
        result: bytes | None,
    ) -> Sequence[Placed] | None:
        """In the writer; None: the lease is gone. Raises Refused, with nothing done."""

        def is_it(flight: Flight) -> bool:
            return flight.origin == (lease.position, lease.shard)

        placing = partial(place, commit, drafts, given)
        return self.settling.follow(commit, lease.text, lease.number, is_it, placing, rights, result)


def _read(reader: Reader, then: Sequence[msgspec.Raw]) -> Sequence[Item]:
    """The follow-ups. Raises FieldError."""
    items: list[Item] = []
    for index, one in enumerate(then):
        try:
            item = reader.line(bytes(one))
        except FieldError as error:
            raise _at(index, error) from None
        if item.while_undone:
            # Each would ask all places, and all follow-ups are decided in one step.
            raise _at(index, FieldError("key_scope", "does not go with then"))
        items.append(item)
    return items


def _at(index: int, error: FieldError) -> FieldError:
    return FieldError(f"then[{index}].{error.field}".rstrip("."), error.detail)


def _refuse(index: int, error: Wrong) -> NoReturn:
    raise _at(index, error) if isinstance(error, FieldError) else error
