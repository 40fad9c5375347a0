"""`fasti dead` and `fasti retry`: messages that were given up, or that wait for their next try."""

from __future__ import annotations

from typing import Annotated

import typer

from fasti.options import DeadSelection, RetrySelection

from .nouns import Noun, Verb, text

Id = Annotated[str, typer.Argument(metavar="ID")]
DELAY = text("delay", "--in", "Send after a delay: 15m, 90s, PT15M.")
KEY = Annotated[
    str | None,
    typer.Option(
        "--key", "--idempotency-key", "-k", help="Idempotency key (the API key stands before `dead`)."
    ),
]
PLACE = text("place", "--place", "Send to another place: $share/GROUP/FILTER, or an endpoint.")
IN = text("delay", "--in", "Try after a delay: 15m, 90s, PT15M.")
AT = text("at", "--at", "Try at this instant.")
COLUMNS = ("group", "attempts", "reason", "topic", "payload")
_SENT = "Send dead letters again, only to the group or session that gave them up: "
_ALL = "by id, or all that the options select."
_WAITING = f"messages that wait for their next try: {_ALL}"

dead = Noun(
    *("dead", "message_id", Id, ("id", "died_at", *COLUMNS)),
    part="dead",
    missing="dead letter {} not found",
).app(
    Verb(
        "ls",
        "List dead letters, ordered by the time at which they died.",
        chosen=DeadSelection,
        others={"key": KEY},
    ),
    Verb("show", "Show a dead letter; one for each session or group that has given the message up."),
    Verb("requeue", _SENT + _ALL, (DELAY, PLACE), chosen=DeadSelection, names={"place": "to"}),
    Verb("drop", f"Forget dead letters: {_ALL}", chosen=DeadSelection),
)
retry = Noun(
    *("retry", "message_id", Id, ("id", "retry_at", *COLUMNS)),
    part="retries",
    missing="no retry of message {}",
).app(
    Verb("ls", "List messages that wait for their next try, ordered by its time.", chosen=RetrySelection),
    Verb("show", "Show what waits of a message; one for each session or group that will try it again."),
    Verb(
        "try",
        f"Try messages now, or at another time: {_ALL}",
        (IN, AT),
        chosen=RetrySelection,
        names={"delay": "deliver_in", "at": "deliver_at"},
    ),
    Verb("bury", f"Make dead letters of {_WAITING}", chosen=RetrySelection),
    Verb("drop", f"Forget {_WAITING}", chosen=RetrySelection),
)
