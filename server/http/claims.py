"""How many places ask for a message now: the answer to `?claims=true`.

These are the groups, sessions and endpoints that would get the message if it was dispatched now. A place that
is away or paused counts: it gets the message later. As in other views, a key counts the groups and sessions
that it sees. The endpoint that the message itself names always counts.
"""

from ..delivery.router import Router
from .access import Rights, is_own
from .turns import Turn
from .values import shapes


async def claims_of(
    topic: bytes, deliver_to: bytes, router: Router, rights: Rights | None, turn: Turn
) -> shapes.Claims:
    """Count them, in steps: a topic may have 100,000 sessions."""
    groups = sessions = 0
    await turn.begin()
    endpoints = len(router.posted(deliver_to)) if deliver_to else 0
    for number, subscriber in enumerate([*router.route(topic)], 1):
        if is_own(rights, subscriber):
            groups += subscriber.is_group
            sessions += not subscriber.is_group
        if turn.is_over(number):
            await turn.begin()
    return {"groups": groups, "endpoints": endpoints, "sessions": sessions}
