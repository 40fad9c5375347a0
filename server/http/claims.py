"""Claims: the number of places that would get a message now, the answer to `?claims=true`.

Counted are groups, sessions and endpoints that would get the message if it were dispatched now. An offline or
paused place counts: it gets the message later. As in other views, a key counts only the groups and sessions
that it sees. The endpoint that the message names always counts.
"""

from timeline.position import END

from ..delivery.router import Router
from .access import Rights, is_own
from .turns import Turn
from .values import shapes


async def claims_of(
    topic: bytes, deliver_to: bytes, router: Router, rights: Rights | None, turn: Turn
) -> shapes.Claims:
    """Count the claims, in steps: a topic may have 100,000 sessions."""
    groups = sessions = 0
    await turn.begin()
    endpoints = int(b"://" in deliver_to) or len(router.posted(deliver_to, b"", END))
    for number, subscriber in enumerate([*router.route(topic)], 1):
        if is_own(rights, subscriber):
            groups += subscriber.is_group
            sessions += not subscriber.is_group
        if turn.is_over(number):
            await turn.begin()
    return shapes.Claims(groups, endpoints, sessions)
