"""The parts of the server that MQTT connections call. Made once, and the same for all of them.

A connection hands each of its own parts (acks.py, inbound.py, outbox.py, subscribing.py) what it uses.
"""

from dataclasses import dataclass

from ..delivery.clients import Clients
from ..delivery.cursors import Cursors
from ..delivery.membership import Membership
from ..delivery.publishing import Publishing
from ..delivery.settling.settling import Settling
from ..delivery.subscriptions import Subscriptions
from ..engine.clock import Clock
from ..observe.tracing import Traces
from ..settings.config import Config


@dataclass(frozen=True, slots=True)
class Parts:
    """What connections share. `traces`: where spans are made; None: nowhere."""

    config: Config
    clock: Clock
    clients: Clients
    subscriptions: Subscriptions
    groups: Membership
    cursors: Cursors
    publishing: Publishing
    settling: Settling
    traces: Traces | None
    node: int
