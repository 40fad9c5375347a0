"""The errors, as a small tree.

    Error
      NotFound            404: no such message, session, slice; 410: it existed (`slug` "gone")
      AlreadyDispatched   409: too late, it is on its way or gone
      Refused             any other refusal, of HTTP (problem+json) or MQTT (a reason code)
        KeyCancelled      the message under the key was cancelled, so that nothing was scheduled
        StillUndone       409 `undone` (places.py): a group or endpoint is not deleted over its backlog
      Unreachable         no answer, after the retries
        Untrusted         no TLS with this server: its certificate, or ours
      Unencrypted         plain MQTT beside https is not used: what to do instead

    BadArgument (a ValueError, not an Error: nothing was sent) names the wrong argument.

The server says why in `application/problem+json` with a stable `type` of the form `/problems/<slug>`; code
should branch on `slug`, people should read `detail`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SLUG_PREFIX = "/problems/"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the server refused.

    `slug` is the last part of the problem's type, `errors` names fields and lines of a refused body,
    `raw` is the whole problem as it came.
    """

    slug: str
    detail: str
    status: int | None = None
    errors: tuple[Mapping[str, Any], ...] = ()
    raw: Mapping[str, Any] | None = None


_NONE = Problem(slug="", detail="")


class Error(Exception):
    """Base of all errors that this package raises on purpose.

    `accepted` counts the messages that a `schedule_many` had already got accepted when it failed.
    """

    def __init__(self, message: str, *, problem: Problem = _NONE) -> None:
        super().__init__(message)
        self.problem = problem
        self.accepted = 0

    @property
    def slug(self) -> str:
        """The problem's stable name, such as `already-dispatched`; empty if the server gave none."""
        return self.problem.slug

    @property
    def detail(self) -> str:
        """One sentence for human readers."""
        return self.problem.detail

    @property
    def errors(self) -> tuple[Mapping[str, Any], ...]:
        """`{"line", "field", "detail"}` for each refused part of the body."""
        return self.problem.errors


class BadArgument(ValueError):
    """Invalid arguments. `argument` names the one that is wrong."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(argument, problem)  # what a copy, or a pickled one, is made from
        self.argument = argument
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.argument} {self.problem}"


class NotFound(Error):
    """No object has this name or id. If `slug` is "gone", it existed earlier."""


class AlreadyDispatched(Error):
    """The message counts as dispatched. It can no longer be cancelled or moved."""

    @property
    def dispatched_at(self) -> str | None:
        """When, in RFC 3339, if the server said so."""
        at = (self.problem.raw or {}).get("dispatched_at")
        return at if isinstance(at, str) else None

    @property
    def deliveries(self) -> tuple[Mapping[str, Any], ...]:
        """Deliveries that are left, as the server lists them; `fasti.Handling.of` parses one."""
        left = (self.problem.raw or {}).get("deliveries")
        return tuple(one for one in left if isinstance(one, Mapping)) if isinstance(left, list) else ()


class Refused(Error):
    """The server refused the request.

    `reason_code` is the MQTT 5 reason code where the no came over MQTT.
    """

    def __init__(self, message: str, *, problem: Problem = _NONE, reason_code: int | None = None) -> None:
        super().__init__(message, problem=problem)
        self.reason_code = reason_code


class KeyCancelled(Refused):
    """Nothing was scheduled: the message under the key was cancelled, and keeps the key.

    `replace=True` takes the key over, `key_scope="pending"` whenever nothing of its message is undone.
    """

    @property
    def id(self) -> str | None:
        """Id of the cancelled message, if the server names it."""
        found = (self.problem.raw or {}).get("id")
        return found if isinstance(found, str) else None


class Unreachable(Error):
    """The server cannot be reached, or the connection ended before the answer."""


class Untrusted(Unreachable):
    """TLS failed over a certificate, the server's or ours. The text says what to do.

    A call or a first connection is not tried again. A subscription that was connected goes on trying.
    """


class Unencrypted(Error):
    """The server has plain MQTT only, and was reached over https: key and messages would go in clear.

    Nothing was sent. Give the server a listener with TLS, or `allow_plain=True` to the client.
    """


class UnencryptedWarning(UserWarning):
    """The API key goes in clear to another machine. `allow_plain=True` says that it may."""


def problem_of(body: object, status: int | None = None) -> Problem:
    """Read a problem+json object; `body` may be anything, also no problem at all."""
    if not isinstance(body, Mapping):
        return Problem(slug="", detail=str(body)[:500] if body else "", status=status)
    kind = str(body.get("type", ""))
    code = body.get("status")
    errors = body.get("errors")
    return Problem(
        slug=kind.rsplit("/", 1)[-1] if SLUG_PREFIX in kind else "",
        detail=str(body.get("detail") or body.get("title") or ""),
        status=code if isinstance(code, int) else status,
        errors=tuple(e for e in errors if isinstance(e, Mapping)) if isinstance(errors, list) else (),
        raw=body,
    )


def error_of(problem: Problem) -> Error:
    """The exception for a problem, a fresh one at each call."""
    text = problem.detail or problem.slug or "refused"
    # Often the detail already contains field and reason: do not repeat them.
    located = [_located(e) for e in problem.errors[:3] if str(e.get("detail", "")) not in text]
    if located:
        text += ": " + "; ".join(located)
    if problem.status is not None:
        text += f" ({problem.status}{' ' + problem.slug if problem.slug else ''})"
    if problem.status in (404, 410):
        return NotFound(text, problem=problem)
    if problem.slug == "already-dispatched":
        return AlreadyDispatched(text, problem=problem)
    return Refused(text, problem=problem)


def renamed(error: Refused, names: Mapping[str, str]) -> Refused:
    """The error of a call, whose text names the arguments of that call, not the fields of the wire."""
    field, colon, rest = str(error).partition(": ")
    if not colon or field not in names:
        return error
    return Refused(f"{names[field]}: {rest}", problem=error.problem, reason_code=error.reason_code)


def of_key(key: str, error: Refused) -> Refused:
    """The error of a call whose key another message has: the key, the difference, and what to do."""
    raw = error.problem.raw or {}
    if error.slug != "idempotency-mismatch":
        return error
    if raw.get("state") == "cancelled":
        return key_cancelled(key, raw)
    field = raw.get("differs")
    other = f"was used for a message with another {field}" if field else "was used for another request"
    advice = "use another key, or key_only=True if both are the same message to you"
    return Refused(f"key {key!r} {other}; {advice}", problem=error.problem)


def key_cancelled(key: str, raw: Mapping[str, Any]) -> KeyCancelled:
    """The error of a call that scheduled nothing because of its key; `raw`: the server's answer, with its
    type."""
    ways = 'give replace=True, or key_scope="pending", to schedule this one under it'
    text = f"the message under key {key!r} was cancelled, and nothing is scheduled; {ways}"
    return KeyCancelled(text, problem=problem_of({**raw, "detail": text}))


def _located(error: Mapping[str, Any]) -> str:
    where = [f"{name} {error[name]}" for name in ("line", "field") if error.get(name) is not None]
    return " ".join([*where, str(error.get("detail", ""))]).strip()
