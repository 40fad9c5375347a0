"""Rows of deliveries, made by hand."""

from server.delivery.subscriber import Subscriber
from shards.delivery_rows import DeliveryRow
from shards.tables import WAITING
from timeline.position import START, MessageId, Position


def delivery(
    one: Subscriber,
    root: Position,
    message: MessageId,
    record: bytes,
    *,
    attempts: int = 0,
    counted: int = 0,
    reason: str = "",
) -> DeliveryRow:
    """A message at a session or group, which waits."""
    return DeliveryRow(
        state=WAITING,
        whose=one.whose,
        root=root,
        at=START,
        addressee=one.session.client_id,
        group=one.name,
        incarnation=one.incarnation,
        id=message,
        shard=0,
        record=record,
        attempts=attempts,
        counted=counted,
        reason=reason,
        keeper="",
        running_ms=0,
        due_ms=0,
        tries=[],
        returns=0,
    )
