"""`fasti session`, `group` and `endpoint`: places on the timeline, with the same verbs from one table."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import fasti

from .complete import endpoint_names, group_names, session_names
from .nouns import NEEDED, Noun, Verb, option, text
from .options import DECLARED, Work, command
from .output import Printer, Row

ClientId = Annotated[str, typer.Argument(metavar="CLIENT_ID", autocompletion=session_names)]
GroupName = Annotated[str, typer.Argument(metavar="NAME", autocompletion=group_names)]
EndpointName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name: A-Z, a-z, 0-9, '.', '_', '-'.", autocompletion=endpoint_names),
]


SINCE = text("since", "--from", "An instant, or a duration back (PT1H).", NEEDED)
TO = text("to", "--to", "New read position: now, an instant, or a duration back (PT1H).", "now")
LEFT = text("undone", "--undone", "Skipped messages: make dead letters, or drop.", "dead", "dead drop")
UNDONE = text(
    *("undone", "--undone", "Unfinished messages: make dead letters, or drop. Default: refuse."),
    words="dead drop",
)
FILTER = text("filter", "--filter", "Only the group with this filter, not all with the name.")
SESSION_COLUMNS = (
    *("client_id", "connected", "subscriptions", "read_position"),
    *("lag_messages", "lag_seconds", "in_flight"),
)
GROUP_COLUMNS = ("name", "filter", "state", "members", "position", "undone", "keys_held")
ENDPOINT_COLUMNS = (
    *("name", "url", "state", "concurrency", "rate", "timeout", "undone", "keys_held", "failing"),
)


def in_words(place: Row) -> Row:
    """A row of a table: unfinished messages, members and failures, in words."""
    from fasti.answers import Undone  # help needs no client
    from fasti.values import optional

    undone, failing = optional(Undone.of, place.get("undone")), place.get("failing")
    words = {} if undone is None else {"undone": str(undone) if undone else "nothing"}
    if "subscriptions" in place:
        words["subscriptions"] = ", ".join(each["filter"] for each in place["subscriptions"])
    if "members" in place:
        words["members"] = ", ".join(f"{m.get('client_id')} ({m.get('in_flight')})" for m in place["members"])
    if failing:
        share = f"{failing['share']:.0%} of {failing['of']}" if failing["of"] else "nothing posted"
        words["failing"] = f"{share}: {failing['last_reason']}" if failing.get("last_reason") else share
    return {**place, **words}


session = Noun("session", "client_id", ClientId, SESSION_COLUMNS, in_words).app(
    Verb("ls", "List sessions, connected and away."),
    Verb("show", "Show one session."),
    Verb("rm", "Forget a session and its place.", method="remove"),
    Verb("replay", "Set a session back, so that it gets messages again.", (SINCE,)),
    Verb("skip", "Leave the backlog of a session behind.", (TO, LEFT)),
)
KEY_COLUMNS = ("key", "filter", "lag", "in_flight", "retry_at", "held", "id", "oldest_at")
KEY = option("key", Annotated[str, typer.Argument(metavar="KEY")], NEEDED)
group = Noun("group", "name", GroupName, GROUP_COLUMNS, in_words).app(
    Verb("ls", "List groups."),
    Verb("show", "Show the groups of a name, one for each filter."),
    Verb("pause", "Give out nothing; the place stays, also over a restart.", (FILTER,)),
    Verb("resume", "Go on where it stood.", (FILTER,)),
    Verb("replay", "Set a group back, so that it gets messages again.", (SINCE, FILTER)),
    Verb("skip", "Leave the backlog of a group behind.", (TO, LEFT, FILTER)),
    Verb("keys", "List ordering keys that are behind or in trouble.", (FILTER,), columns=KEY_COLUMNS),
    Verb("hold", "Deliver nothing more of an ordering key.", (KEY, FILTER), columns=KEY_COLUMNS),
    Verb("release", "Let a held ordering key go on.", (KEY, FILTER), columns=KEY_COLUMNS),
    Verb("rm", "Forget a group and its place; its members get nothing more.", (FILTER, UNDONE)),
)
endpoint = Noun("endpoint", "name", EndpointName, ENDPOINT_COLUMNS, in_words).app(
    Verb("ls", "List endpoints by name."),
    Verb("show", "Show one endpoint."),
    Verb("pause", "Post nothing; its place stays."),
    Verb("resume", "Go on where it stood."),
    Verb("replay", "Set an endpoint back, so that it is posted messages again.", (SINCE,)),
    Verb("skip", "Leave the backlog of an endpoint behind.", (TO, LEFT)),
    Verb("keys", "List ordering keys that are behind or in trouble.", columns=KEY_COLUMNS),
    Verb("hold", "Post nothing more of an ordering key.", (KEY,), columns=KEY_COLUMNS),
    Verb("release", "Let a held ordering key go on.", (KEY,), columns=KEY_COLUMNS),
    Verb("test", "Have the server post a message for trial now, and say what came of it."),
    Verb("rm", "Forget an endpoint and its place.", (UNDONE,)),
)


def given(**options: Any) -> dict[str, Any]:
    """The given options, with `per_key` and `backoff` in the SDK's form."""
    per_key = {name: options.pop(f"per_key_{name}") for name in ("concurrency", "rate")}
    options["per_key"] = {name: value for name, value in per_key.items() if value is not None} or None
    options["backoff"] = options["backoff"].split(",") if options["backoff"] else None
    return {name: value for name, value in options.items() if value is not None}


async def put_group(client: fasti.Client, out: Printer, name: str, filter: str, **options: Any) -> None:  # noqa: A002
    """Create a group, or set its terms. An omitted option gets its default again."""
    out.one((await client.groups.put(name, filter, **given(**options))).raw)


async def put_endpoint(client: fasti.Client, out: Printer, name: str, url: str, **options: Any) -> None:
    """Make an endpoint, or change it in place."""
    terms = given(**options)
    if retry := {term: terms.pop(term) for term in ("max_attempts", "backoff") if term in terms}:
        terms["retry"] = retry
    out.one((await client.endpoints.put(name, url, **terms)).raw)


TERMS = (
    *("rate", "order", "on_dead", "per_key_concurrency", "per_key_rate", "fair"),
    *("max_attempts", "backoff", "expiry", "keep", "result_ttl", "alerts"),
)
"""Options of both `group put` and `endpoint put`."""


def put(app: typer.Typer, work: Work, name: Any, target: str, *terms: str) -> None:
    """Add `put NAME TARGET` with the terms; its help is the docstring of `work`."""
    arguments = {"name": name, target: Annotated[str, typer.Argument(metavar=target.upper())]}
    parameters = [option(word, kind, NEEDED) for word, kind in arguments.items()]
    parameters += [option(word, DECLARED[word]) for word in terms]
    app.command("put")(command(work, parameters))


put(group, put_group, GroupName, "filter", "ack_timeout", *TERMS)
put(
    *(endpoint, put_endpoint, EndpointName, "url"),
    *("secret", "headers", "concurrency", "timeout", "body", *TERMS),
)
