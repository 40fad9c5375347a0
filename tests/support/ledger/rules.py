"""Which rules the server is held to. One that is off is neither asked for nor held against it.

To switch one on, make its default True here; for one run, `python -m tests.oracle --on releases`.
"""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Rules:
    requeues_to: bool = True
    """`dead:requeue` with `to`, also a place that has the message unread or in its hands: once is enough."""
    replays_end_flights: bool = True
    """What was in flight when its place was set back, and is acked then, is not given again."""
    letters_stay_with_their_place: bool = True
    """`dead:requeue` without `to` gives nothing of a former place to the one that has its name now."""
    leases_survive: bool = True
    """Until `lease_until` nobody else gets the message, also after a kill. Extends are synced."""
    releases: bool = True
    """There is `messages:release`."""
    returns_are_no_tries: bool = True
    """What was given back in order (DISCONNECT, the stop of a server) was no try, for the first ten times."""
    leases_name_tries: bool = True
    """Nack, extend and release of an earlier try touch nothing. An ack of one is the only ack that counts."""


RULES = Rules()
ALL = Rules(**{one.name: True for one in fields(Rules)})
