"""fasti: messages that arrive at a time of your choosing.

    async with fasti.Client("http://127.0.0.1:8080") as c:
        m = await c.messages.schedule("orders/17/remind", {"id": 17}, delay=timedelta(minutes=30))
        won = await m.cancel()
        async for d in c.subscribe("orders/+/remind", session="audit"):
            await handle(d.json())
            await d.ack()

`fasti.sync.Client` is the same for code without an event loop. This package knows only the wire; it imports
nothing of the server.
"""

from . import sync
from .admin import Info, Session, Shard, Slice
from .client import Client
from .delivery import Delivery
from .errors import AlreadyDispatched, BadArgument, Error, NotFound, Problem, Refused, Unreachable
from .jobs import Job
from .messages import Message
from .ranges import BulkResult
from .schedules import Fire, Schedule
from .subscribe import Subscription
from .timeline import Density
from .transport import Retry
from .wire import NewMessage, instant_of_id

__version__ = "0.1.0"

__all__ = [
    "AlreadyDispatched",
    "BadArgument",
    "BulkResult",
    "Client",
    "Delivery",
    "Density",
    "Error",
    "Fire",
    "Info",
    "Job",
    "Message",
    "NewMessage",
    "NotFound",
    "Problem",
    "Refused",
    "Retry",
    "Schedule",
    "Session",
    "Shard",
    "Slice",
    "Subscription",
    "Unreachable",
    "instant_of_id",
    "sync",
]
