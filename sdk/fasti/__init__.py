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
    answers.py          what the server answers, as values
    messages.py         schedule, look up, list, cancel and move messages; `Message`, `ByKey`
    bulk.py             millions of messages in, a batch in memory
    ranges.py           many messages by topic and due time: cancel, shift, export
    schedules.py        messages that come again and again
    subscribe.py        messages as an async iterator that survives the connection
    delivery.py         one delivered message, until it is acked or nacked; `Delivery`
    pull.py             messages of a group for who asks for them, over HTTP; `Pull`, `Pulled`
    worker.py           handlers for the messages of a group, and the loop that calls them; `Worker`
    handlers.py         one of them: its filter, the type of its payload, and `schedule`
    groups.py           shared subscriptions: their terms, pause, replay
    endpoints.py        where messages with `deliver_to` are posted
    places.py           what they all have: what is undone, what becomes of it, ordering keys; `StillUndone`
    entries.py          what was given up, to be sent again or dropped; what waits for its next try
    admin.py            sessions, slices and shards, jobs, the timeline, the server itself and its cluster
    traces.py           the trace that a message belongs to, where OpenTelemetry is used
    errors.py           what can go wrong, as a small tree

Without an event loop
    sync.py             the client and all its parts, blocking; generated from the files above
    blocking.py         the event loop in a thread that it hands its calls to

Below
    values.py           how an answer is read, and what the SDK adds to its values
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

A module is imported when one of its names is used for the first time. So the command `fasti --help` does not
wait for a client of HTTP and one of MQTT. `__init__.pyi` tells type checkers and editors of the names.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0.dev0"

_NAMES = {
    "answers": "BulkResult Claims ClusterNode ClusterState Commit DeadLetter Density Endpoint Failing Fire"
    " Group Handling Info Job OrderingKey Schedule Session Shard Silence Skipped Slice Try Undone Upserted"
    " WaitingRetry Why",
    "client": "Client",
    "delivery": "Delivery",
    "errors": "AlreadyDispatched BadArgument Error KeyCancelled NotFound Problem Refused Unencrypted"
    " UnencryptedWarning Unreachable Untrusted",
    "messages": "ByKey Message NoResult",
    "places": "StillUndone",
    "pull": "Pull Pulled",
    "subscribe": "Subscription",
    "transport": "Retry",
    "wire": "NewMessage instant_of_id",
    "worker": "Figures Reject RetryIn Worker",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted([*_HOMES, "sync"])


def __getattr__(name: str) -> Any:
    """A public name, or a module of this package. Raises AttributeError."""
    try:
        module = import_module(f".{_HOMES.get(name, name)}", __name__)
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    found = getattr(module, name) if name in _HOMES else module
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
