"""A worker's handler: the function, the type of its payload, and the call that gives it work.

    @dataclass
    class Remind:
        order: int

    @worker.on("orders/{order}/remind")
    async def remind(job: Remind) -> None:
        await mail(job.order)

    await remind.schedule({"order": 17}, delay="3d")      # to orders/17/remind

Topic and payload are written down once, where they are handled. A level `{order}` of the filter is `+` to the
server, and is filled from the payload's member of that name.

The first argument's annotation says what the function takes: a dataclass, a msgspec Struct or a pydantic
model is made of the payload's JSON, by its own rules (a dataclass checks names, not types); with `| None` it
may be null. A second argument
then takes the `Delivery`. With any other annotation, or none, the function takes the `Delivery` alone.
`schedule` checks a payload by the same type before anything is sent. A payload that does not fit on arrival
is a dead letter at once: no retry can help.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import json
import operator
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, Unpack

from . import sync as _sync
from .blocking import is_in_loop
from .client import Client
from .delivery import Delivery
from .errors import BadArgument
from .messages import Message
from .mqtt_values import fits
from .names import check_text
from .options import MessageOptions
from .signatures import unfolded
from .wire import dumps

P = ParamSpec("P")
R = TypeVar("R")

_LEVEL = re.compile(r"\{(\w+)\}")
_SEQUENCES = (list, Sequence)
_MAPPINGS = (dict, Mapping)
_UNIONS = (typing.Union, types.UnionType)
_WILD = frozenset("+#/\0")


class Unfit(Exception):
    """A payload that is not of the handler's type."""

    def __init__(self, kind: type, error: Exception) -> None:
        super().__init__(f"does not fit {kind.__name__}: {' '.join(str(error).split())}")


class Codec(NamedTuple):
    """How a type reads and writes JSON. `check` makes a value of what `schedule` is given."""

    kind: type
    load: Callable[[bytes], Any]
    check: Callable[[Any], Any]
    dump: Callable[[Any], Any]

    def with_none(self) -> Codec:
        """The same, for which None and null are values, too."""
        return self._replace(
            load=lambda data: None if data.strip() == b"null" else self.load(data),
            check=lambda value: None if value is None else self.check(value),
            dump=lambda value: None if value is None else self.dump(value),
        )

    def written(self, value: Any) -> Any:
        """A value as JSON. Raises BadArgument if the worker could not make it of that again."""
        try:
            content = self.dump(value)
            self.load(dumps(content))
        except Exception as error:
            why = " ".join(str(error).split())
            raise BadArgument("payload", f"is no {self.kind.__name__} in JSON: {why}") from error
        return content


def codec_of(kind: Any) -> Codec | None:
    """None for a type that is not one of the three. `kind | None` takes null as well."""
    if (inner := _unwrapped(kind)) is not kind:
        codec = codec_of(inner)
        return None if codec is None else codec.with_none()
    if not isinstance(kind, type):
        return None
    if hasattr(kind, "model_validate_json"):
        model: Any = kind
        dump = operator.methodcaller("model_dump", mode="json", by_alias=True)
        return Codec(kind, model.model_validate_json, model.model_validate, dump)
    if hasattr(kind, "__struct_fields__"):
        import msgspec

        decoder: Any = msgspec.json.Decoder(kind)
        return Codec(kind, decoder.decode, functools.partial(msgspec.convert, type=kind), msgspec.to_builtins)
    if dataclasses.is_dataclass(kind):
        make = functools.partial(_of_members, kind)
        return Codec(kind, lambda data: make(json.loads(data)), make, _members)
    return None


def _members(value: Any) -> Any:
    """What the constructors of a dataclass and of those within it take."""
    if dataclasses.is_dataclass(value):
        return {one.name: _members(getattr(value, one.name)) for one in dataclasses.fields(value) if one.init}
    if isinstance(value, Mapping):
        return {name: _members(one) for name, one in value.items()}
    return [_members(one) for one in value] if isinstance(value, (list, tuple)) else value


def _of_members(kind: type, members: Any) -> Any:
    if isinstance(members, kind):
        return members
    if not isinstance(members, Mapping):
        raise TypeError(f"expected an object with members, got {members!r:.100}")
    hints = _hints(kind)
    return kind(**{name: _of_hint(hints.get(name), one) for name, one in members.items()})


@functools.lru_cache(maxsize=256)
def _hints(kind: type) -> Mapping[str, Any]:
    """Types of the members; empty if they cannot be resolved, as of names that only a type checker has."""
    try:
        return typing.get_type_hints(kind)
    except NameError:
        return {}


def _of_hint(hint: Any, value: Any) -> Any:
    """The value, with dataclasses in place of the objects that the hint names them for."""
    hint = _unwrapped(hint)
    if isinstance(value, Mapping) and isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _of_members(hint, value)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(value, Mapping) and origin in _MAPPINGS:
        return {name: _of_hint(inner[1], one) for name, one in value.items()}
    if isinstance(value, list) and origin in _SEQUENCES:
        return [_of_hint(inner[0], one) for one in value]
    return value


def _unwrapped(hint: Any) -> Any:
    """The type in `type | None`; any other hint as it is."""
    inner = [one for one in typing.get_args(hint) if one is not types.NoneType]
    return inner[0] if len(inner) == 1 and typing.get_origin(hint) in _UNIONS else hint


class Pattern:
    """A filter whose levels may have names: `orders/{order}/remind`."""

    def __init__(self, text: str) -> None:
        check_text("topic_filter", text)
        self._levels = text.split("/")
        for level in self._levels:
            if "{" in level and not _LEVEL.fullmatch(level):
                raise BadArgument("topic_filter", f"has names for whole levels, as {{order}}, not {level!r}")
        self.filter = "/".join("+" if _LEVEL.fullmatch(level) else level for level in self._levels)

    def topic(self, payload: Any) -> str:
        """The topic of a payload. Raises BadArgument if a level has no value."""
        if any(level in ("+", "#") for level in self._levels):
            raise BadArgument(
                "topic",
                f"is required: {self.filter} has wildcards without names; give topic=, or name the levels "
                "of the handler's filter: {name}",
            )
        named = ((level, _LEVEL.fullmatch(level)) for level in self._levels)
        return "/".join(_filled(found[1], payload) if found else level for level, found in named)


def _filled(name: str, payload: Any) -> str:
    value = payload.get(name) if isinstance(payload, Mapping) else getattr(payload, name, None)
    text = "" if value is None else str(value)
    if not text or _WILD & set(text):
        raise BadArgument(
            "payload", f"needs a member {name!r} for the topic, text without / + #, not {value!r}"
        )
    return text


class Host:
    """What a handler schedules with: the worker's client, and its loop while it runs."""

    def __init__(self, client: Client | None) -> None:
        self.client = client
        self.loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def running(self, client: Client) -> Iterator[None]:
        """While the worker runs, with this client."""
        before, self.client, self.loop = self.client, client, asyncio.get_running_loop()
        try:
            yield
        finally:
            self.client, self.loop = before, None


@unfolded
class Handler(Generic[P, R]):
    """A registered function. Call it as before; `schedule` schedules a message for it."""

    def __init__(self, function: Callable[P, R], pattern: Pattern, host: Host) -> None:
        """Raises BadArgument for an annotation that cannot be resolved."""
        functools.update_wrapper(self, function)
        self.function = function
        self._pattern = pattern
        self._host = host
        self._codec, self._takes_delivery = _taken(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def schedule(
        self,
        payload: Any,
        *,
        topic: str | None = None,
        client: Client | None = None,
        **options: Unpack[MessageOptions],
    ) -> Message:
        """Schedule a message for this handler. Errors are those of `client.messages.schedule`.

        Raises BadArgument for a payload that is not of the handler's type.

        `payload`: a value of the handler's type, or what it can be made of; without a type as for
            `client.messages.schedule`.
        `topic`: needed where the filter has wildcards without names.
        `client`: default: the worker's; without one a connection is opened for this call.
        """
        target, content = self._made(payload, topic)
        found = client or self._host.client
        async with Client() if found is None else contextlib.nullcontext(found) as c:
            return await c.messages.schedule(target, content, **options)

    def schedule_sync(
        self,
        payload: Any,
        *,
        topic: str | None = None,
        client: _sync.Client | None = None,
        **options: Unpack[MessageOptions],
    ) -> str:
        """The same from a thread, or a program without an event loop; returns the message's id.

        `payload`, `topic`: as for `schedule`.
        `client`: default: the running worker's; without one a connection is opened for this call.
        """
        if is_in_loop():
            raise RuntimeError("schedule_sync() would block the running event loop; use: await schedule()")
        loop = self._host.loop
        if client is None and loop is not None:
            sending = self.schedule(payload, topic=topic, **options)
            return asyncio.run_coroutine_threadsafe(sending, loop).result().id
        target, content = self._made(payload, topic)
        if client is None and self._host.client is not None:
            raise BadArgument(
                "client", "is required while the worker does not run: give client=fasti.sync.Client(...)"
            )
        with _sync.Client() if client is None else contextlib.nullcontext(client) as c:
            return c.messages.schedule(target, content, **options).id

    def arguments(self, d: Delivery) -> tuple[Any, ...]:
        """What the function is called with. Raises Unfit."""
        if self._codec is None:
            return (d,)
        try:
            value = self._codec.load(d.payload)
        except Exception as error:
            raise Unfit(self._codec.kind, error) from error
        return (value, d) if self._takes_delivery else (value,)

    def _made(self, payload: Any, topic: str | None) -> tuple[str, Any]:
        """Topic and content of a payload. Raises BadArgument."""
        codec, value = self._codec, payload
        if codec is not None and not isinstance(payload, codec.kind):
            try:
                value = codec.check(payload)
            except Exception as error:
                raise BadArgument("payload", str(Unfit(codec.kind, error))) from error
        if topic is None:
            topic = self._pattern.topic(value)
        elif not fits(self._pattern.filter, topic):
            raise BadArgument(
                "topic", f"{topic!r} does not match the handler's filter {self._pattern.filter}"
            )
        return topic, value if codec is None else codec.written(value)


def _taken(function: Callable[..., Any]) -> tuple[Codec | None, bool]:
    """The type of the first argument, if it is one of the three, and whether a second takes the delivery."""
    try:
        arguments = list(inspect.signature(function, eval_str=True).parameters.values())
    except NameError as error:
        raise BadArgument("handler", f"{function!r}: its annotations cannot be resolved: {error}") from error
    except (TypeError, ValueError):  # not a function of Python
        return None, False
    codec = codec_of(arguments[0].annotation) if arguments else None
    return codec, len(arguments) > 1 and arguments[1].default is inspect.Parameter.empty
