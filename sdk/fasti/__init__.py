"""fasti: messages that arrive at a time of your choosing.

    async with fasti.Client("http://127.0.0.1:8080") as c:
        m = await c.messages.schedule("orders/17/remind", {"id": 17}, delay=timedelta(minutes=30))
        won = await m.cancel()
        async for d in c.subscribe("orders/+/remind", session="audit"):
            await handle(d.json())
            await d.ack()

`fasti.sync.Client` is the same for code without an event loop. This package knows only the wire; it imports
nothing of the server.

What a call takes and gives
    client.py           `Client`: one server or a cluster of them, HTTP side and MQTT side
    options.py          the keyword arguments of the calls, each named once
    signatures.py       what `help()` shows of them, and the words of others for them
    messages.py         schedule, look up, list, cancel and move messages; `Message`, `Handling`, `ByKey`
    bulk.py             millions of messages in, a batch in memory
    ranges.py           many messages by topic and due time: cancel, shift, export
    schedules.py        messages that come again and again; `Schedule`, `Fire`, `Silence`
    subscribe.py        messages as an async iterator that survives the connection
    delivery.py         one delivered message, until it is acked or nacked; `Delivery`
    pull.py             messages of a group for who asks for them, over HTTP; `Pull`, `Pulled`
    worker.py           handlers for the messages of a group, and the loop that calls them; `Worker`
    handlers.py         one of them: its filter, the type of its payload, and `schedule`
    groups.py           shared subscriptions: their terms, pause, replay; `Group`
    endpoints.py        where messages with `deliver_to` are posted; `Endpoint`
    keys.py             ordering keys in trouble, of a group or endpoint that orders; `OrderingKey`
    places.py           what they all have: what is undone, what becomes of it; `Undone`, `StillUndone`
    dead.py             what was given up, to be sent again or dropped; `DeadLetter`
    retries.py          what waits for its next try, to be tried now, buried or dropped; `WaitingRetry`
    entries.py          what these two share; `Try`
    timeline.py         how many messages lie ahead; `Density`
    admin.py            sessions, slices and shards, the server itself; `Session`, `Slice`, `Shard`, `Info`
    cluster.py          nodes of a cluster, who leads and how far the others are; `ClusterState`
    traces.py           the trace that a message belongs to, where OpenTelemetry is used
    jobs.py             work on whole slices that the server has done by Spark; `Job`
    errors.py           what can go wrong, as a small tree

Without an event loop
    sync.py             the client and all its parts, blocking; generated from the files above
    blocking.py         the event loop in a thread that it hands its calls to

Below
    wire.py             values on the wire: instants, spans, payloads, a message's body; `NewMessage`
    warned.py           warnings at the line of the user's program
    durations.py        durations as text, read as the server reads them
    addresses.py        where the server is: one address or several, and whom the key may go to
    tls.py              which servers are trusted, and what is shown to them
    transport.py        HTTP with retries, and listings page after page; `Retry`
    coalesce.py         concurrent calls in one request
    mqtt_adapter.py     one MQTT connection, over aiomqtt
    mqtt_values.py      what that connection takes and gives
    names.py            what MQTT can say, what a group may be called

Beside
    testing.py          a pytest fixture: a server with a clock that you move
    cli/                the command `fasti`
"""

from . import sync
from .admin import Info, Session, Shard, Slice
from .client import Client
from .cluster import ClusterNode, ClusterState
from .dead import DeadLetter
from .delivery import Delivery
from .endpoints import Endpoint, Failing
from .entries import Try
from .errors import (
    AlreadyDispatched,
    BadArgument,
    Error,
    KeyCancelled,
    NotFound,
    Problem,
    Refused,
    Unencrypted,
    UnencryptedWarning,
    Unreachable,
    Untrusted,
)
from .groups import Group
from .jobs import Job
from .keys import OrderingKey
from .messages import ByKey, Claims, Handling, Message, Upserted
from .places import Skipped, StillUndone, Undone
from .pull import Pull, Pulled
from .ranges import BulkResult
from .retries import WaitingRetry
from .schedules import Fire, Schedule, Silence
from .subscribe import Subscription
from .timeline import Density
from .transport import Retry
from .wire import NewMessage, instant_of_id
from .worker import Figures, Reject, RetryIn, Worker

__version__ = "0.2.0.dev0"

__all__ = [
    "AlreadyDispatched",
    "BadArgument",
    "BulkResult",
    "ByKey",
    "Claims",
    "Client",
    "ClusterNode",
    "ClusterState",
    "DeadLetter",
    "Delivery",
    "Density",
    "Endpoint",
    "Error",
    "Failing",
    "Figures",
    "Fire",
    "Group",
    "Handling",
    "Info",
    "Job",
    "KeyCancelled",
    "Message",
    "NewMessage",
    "NotFound",
    "OrderingKey",
    "Problem",
    "Pull",
    "Pulled",
    "Refused",
    "Reject",
    "Retry",
    "RetryIn",
    "Schedule",
    "Session",
    "Shard",
    "Silence",
    "Skipped",
    "Slice",
    "StillUndone",
    "Subscription",
    "Try",
    "Undone",
    "Unencrypted",
    "UnencryptedWarning",
    "Unreachable",
    "Untrusted",
    "Upserted",
    "WaitingRetry",
    "Worker",
    "instant_of_id",
    "sync",
]
