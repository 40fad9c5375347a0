"""Access control: the key of a request, its scope, and the topics that its rules allow.

    Authorization: Bearer fasti_meter-7_5f0c...
    Authorization: Basic base64(anything:fasti_meter-7_5f0c...)      for programs that know no other

    no key, or not a key           401 with WWW-Authenticate         the scope does not do     403
    wrong ones before, or too      429 with Retry-After              a topic to send to that
    many being checked                                               the rules do not allow    403

A browser that was once asked for Basic sends it with every later request of any page, also of other origins
if `http.origins` allows them. So Basic does not count in a request with an `Origin`.

A message that a key may not see does not exist for it: 404, in no list, not counted. A key may see messages
to topics that it may publish to or receive; it may cancel and move those that it may publish to. Without keys
nothing is checked: `rights_of` is None.

Keys are cached after their first request. `livez` and `readyz` need no key.
"""

import asyncio
import base64
from collections.abc import Callable, Iterable
from math import ceil
from typing import Any

from aiohttp import web

from ..auth.keyring import Keyring, Refusal, Why, split_credential
from ..auth.rights import READ, Principal
from ..auth.rights import Rights as Rights  # routes take it from here
from ..delivery.place import Place
from ..delivery.retained import Retained
from ..delivery.router import posting_topic
from ..net.networks import network_of
from .answers import Handler
from .calls import ADMIN, ANY, OPEN, call_of
from .problems import Problem, address_of
from .protocol import Protocol
from .values.message_body import ParsedMessage

RIGHTS = web.RequestKey("rights", Rights)
CHALLENGE = 'Bearer realm="fasti"'
SCHEME = "bearer"
BASIC_SCHEME = "basic "
CALENDAR = "/v1/schedules.ics"
"""The only call that asks for Basic: its programs know nothing else, and send it only when asked."""
BASIC = 'Basic realm="fasti", charset="UTF-8"'

TOTALS = b"$SYS/broker"
"""Topic below which MQTT clients are sent figures of all clients."""

Sees = Callable[[bytes], bool]
"""Whether the caller may see messages to this topic."""


class Access:
    """Checks the keys of requests, if there are keys."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self.is_open = not keyring.has_api_keys
        """Whether no keys are needed."""

    def recall(self, authorization: str, scope: str | None) -> Rights | None:
        """Rights of a known key with this scope (None: any scope). None: the key must be checked fully."""
        key = _api_key_in(authorization)
        if key is None:
            return None
        principal = self._keyring.recall(*split_credential(key))
        is_it = principal is not None and (scope is None or principal.has(scope))
        return principal.here if principal is not None and is_it else None

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware: checks the key and its scope."""
        if self.is_open:
            return await handler(request)
        call = call_of(request.match_info.handler)
        scope = ANY if call is None else call.scope
        if scope != OPEN:
            try:
                principal = await self._whose(request)
            except Problem as problem:
                if request.path == CALENDAR and "WWW-Authenticate" in problem.headers:
                    problem.headers["WWW-Authenticate"] = BASIC
                raise
            _check_scope(principal, scope)
            request[RIGHTS] = principal.here
        return await handler(request)

    @web.middleware
    async def check_again(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware: checks the key again when the body has arrived. A slow sender may have lost it."""
        rights, call = rights_of(request), call_of(request.match_info.handler)
        if rights is not None and request.body_exists and call is not None and call.body is not None:
            await request.read()
            if not rights.is_live:
                raise _unauthorized("The key is no longer valid.", ', error="invalid_token"')
            _check_scope(rights.principal, call.scope)
        return await handler(request)

    async def _whose(self, request: web.Request) -> Principal:
        """Raises Problem."""
        values = request.headers.getall("Authorization", ())
        if not values:
            raise _unauthorized("A key is required: send Authorization: Bearer <key>.")
        if "Origin" in request.headers and values[0][:6].lower() == BASIC_SCHEME:
            raise _unauthorized("Pages must send the key as Bearer: browsers send Basic by themselves.")
        key = _api_key_in(values[0]) if len(values) == 1 else None
        if key is None:
            raise _unauthorized(
                "Authorization must be `Bearer <key>`, or Basic with a key.",
                ', error="invalid_request"',
            )
        found: asyncio.Future[Principal | Refusal] = asyncio.get_running_loop().create_future()

        def done(answer: Principal | Refusal) -> None:
            if not found.done():
                found.set_result(answer)

        self._keyring.check(*split_credential(key), address_of(request), done)
        answer = await found
        if isinstance(answer, Principal):
            if isinstance(request.protocol, Protocol):
                why = request.protocol.claim(answer.here.name)
                if why:
                    raise over_quota(why, 1.0)
            return answer
        if answer.why is Why.WRONG:
            raise _unauthorized("This server does not know the key.", ', error="invalid_token"')
        why = "Too many wrong keys." if answer.why is Why.HELD else "Too many keys are being checked."
        raise over_quota(why, answer.wait_s)


def rights_of(request: web.Request) -> Rights | None:
    """Rights of the request's sender; None: everything, there are no keys."""
    return request.get(RIGHTS)


def client_of(request: web.Request) -> str:
    """Identity of the caller where clients share something: the key, or without keys the network."""
    rights = rights_of(request)
    return network_of(address_of(request)) if rights is None else f"key {rights.name}"


def user_of(request: web.Request) -> str:
    """Whose idempotency keys the sender of the request uses: the name of its key, empty without keys."""
    rights = rights_of(request)
    return "" if rights is None else rights.name


def sees(request: web.Request) -> Sees | None:
    """Messages that the sender of the request may see; None: all."""
    rights = rights_of(request)
    return None if rights is None or rights.sees_all else rights.may_see


def sees_totals(request: web.Request) -> bool:
    """Whether the caller may know figures of all clients. It may if it sees all messages (those at `$...`
    aside), or if it may receive these figures over MQTT."""
    rights = rights_of(request)
    if rights is None or rights.sees_all or rights.may_receive(TOTALS):
        return True
    deliver = rights.principal.grant.deliver
    return rights.principal.has(READ) and "#" in (deliver.allow or ()) and not deliver.deny


def changes(request: web.Request) -> Sees | None:
    """Messages that the sender of the request may cancel and move; None: all."""
    rights = rights_of(request)
    return None if rights is None else rights.may_publish


def sees_every_session(rights: Rights | None) -> bool:
    """Whether the caller sees the sessions and groups of all clients."""
    return rights is None or rights.principal.has(ADMIN)


def owns(rights: Rights | None, owners: Iterable[str]) -> bool:
    """Whether the caller sees a session or group. `owners`: the keys that its clients have used."""
    return rights is None or rights.principal.has(ADMIN) or all(name == rights.name for name in owners)


def is_own(rights: Rights | None, subscriber: Place) -> bool:
    """`owns` for a session or group."""
    # The owners of many members are costly.
    return rights is None or sees_every_session(rights) or subscriber.is_of(rights.name)


def check_send(rights: Rights | None, topic: bytes, deliver_to: bytes = b"") -> None:
    """Raise Problem unless messages may be sent to the topic, and delivered there."""
    if rights is not None and not may_send(rights, topic, deliver_to):
        raise not_to_send(rights)


def may_send(rights: Rights, topic: bytes, deliver_to: bytes = b"") -> bool:
    """Whether messages may be sent to the topic, and to the topic of their target."""
    return rights.may_publish(topic) and (not deliver_to or rights.may_publish(posting_topic(deliver_to)))


def not_to_send(rights: Rights, **extra: Any) -> Problem:
    text = f"Key '{rights.name}' may not send to this topic or deliver to this target."
    return Problem("forbidden", text, **extra)


def unretained(message: ParsedMessage, retained: Retained, rights: Rights | None) -> str:
    """Why an immediate message cannot become retained; empty: it can, or need not."""
    if not message.retain or not message.payload or message.due_ms:
        return ""
    return retained.refusal(message.topic, "" if rights is None else rights.name)


def charge(rights: Rights | None, count: int) -> None:
    """Take `count` messages from the key's rate limit. Raises Problem."""
    if rights is not None:
        wait_s = rights.principal.rate_limiter.take(count)
        if wait_s:
            raise over_quota(f"Key '{rights.name}' is above its rate of messages a second.", wait_s)


def over_quota(why: str, wait_s: float) -> Problem:
    """`wait_s`: time until a retry may succeed."""
    return Problem("over-quota", why, headers={"Retry-After": str(max(1, ceil(wait_s)))})


def _check_scope(principal: Principal, scope: str) -> None:
    if scope != ANY and not principal.has(scope):
        raise Problem("forbidden", f"Key '{principal.name}' lacks the scope '{scope}'.")


def _api_key_in(authorization: str) -> str | None:
    scheme, _, key = authorization.partition(" ")
    key = key.strip(" ")
    if scheme.lower() == "basic":
        return _password_in(key)
    return key if scheme.lower() == SCHEME and key.isascii() and key and " " not in key else None


def _password_in(text: str) -> str | None:
    """RFC 7617: the password is the key, whatever the user name."""
    try:
        _, colon, password = base64.b64decode(text, validate=True).decode("ascii").partition(":")
    except ValueError:
        return None
    return password if colon and password and " " not in password else None


def _unauthorized(detail: str, more: str = "") -> Problem:
    return Problem("unauthorized", detail, headers={"WWW-Authenticate": CHALLENGE + more})
