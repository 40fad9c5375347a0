"""A delivery that has failed, as its place hands it to the writer."""

import msgspec

from shards.delivery_rows import DeliveryRow, whose
from timeline.position import START, Position, message_id


def failed(
    root: Position,
    record: bytes,
    *,
    addressee: str = "s",
    group: str = "",
    incarnation: int = 0,
    **more: object,
) -> DeliveryRow:
    """Once, with the id of a message that was written to `root`; `more`: other fields."""
    row = DeliveryRow(
        state=0,
        whose=whose(addressee, incarnation),
        root=root,
        at=START,
        addressee=addressee,
        group=group or addressee,
        incarnation=incarnation,
        id=message_id(root, 0, 5),
        shard=0,
        record=record,
        attempts=1,
        counted=1,
        reason="busy",
        keeper="",
        running_ms=0,
        due_ms=0,
        tries=[],
        returns=0,
    )
    return msgspec.structs.replace(row, **more)
