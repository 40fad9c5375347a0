"""Signatures that show every option, and errors for names that others use.

A method takes its options as `**options: Unpack[MessageOptions]`, so that they are named once, in
`fasti.options`. `@unfolded` on its class shows `help()`, `inspect.signature` and a notebook each of them by
name, type and default, and adds what it means to the docstring:

    schedule(topic='', payload='', *, ..., at: When | None = None, delay: Span | None = None, ...)

This is done once, when the class is made. A call costs what it costs without it.

`check` refuses a name that is no option. It knows the words of Celery, SQS, QStash, BullMQ and others:
`countdown=5` is answered with "fasti calls it delay".
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

from . import options as _options
from .errors import BadArgument
from .options import DEFAULTS, RetryOptions

C = TypeVar("C", bound=type)

_UNPACKED = re.compile(r"Unpack\[(\w+)\]")
_MEANING = re.compile(r"^(`(\w+)`: .*(?:\n +.*)*)", re.MULTILINE)

_THEIRS: Mapping[str, str] = {
    "delay": "countdown deliver_in delay_seconds DelaySeconds defer_by schedule_in start_delay wait after",
    "at": "eta deliver_at not_before run_at run_date scheduled_at scheduled_for schedule_at defer_until when"
    " due scheduled_enqueue_time_utc",
    "key": "idempotency_key task_id job_id jobId message_id deduplication_id dedup_id unique_key"
    " MessageDeduplicationId",
    "expires_in": "expires ttl time_to_live message_expiry expiry",
    "payload": "body data json args kwargs message value MessageBody",
    "topic": "queue queue_name routing_key subject channel QueueUrl",
    "deliver_to": "url callback callback_url destination endpoint webhook",
    "ordering_key": "partition_key group_id MessageGroupId message_group_id fairness_key group_key",
    "headers": "user_properties attributes MessageAttributes",
    "cron": "crontab pattern",
    "every": "interval repeat period",
    "timezone": "tz time_zone zone",
    "start": "start_date dtstart starts_at",
    "end": "end_date until ends_at",
    "misfire": "coalesce misfire_grace_time",
    "session": "client_id durable durable_name",
    "group": "consumer_group queue shared",
    "ack_timeout": "visibility_timeout VisibilityTimeout lease ack_wait acks_late",
    "max_attempts": "max_retries retries attempts tries max_tries max_deliver",
    "backoff": "retry_backoff retry_delay default_retry_delay delays",
    "max_in_flight": "prefetch prefetch_count receive_maximum concurrency",
    "replay_from": "since start_from deliver_policy",
    "due_from": "since from_ start",
    "due_to": "until to end",
}
"""Our word -> the words of others for it."""
_TRIES = {"retry", "max_attempts", "backoff", *f"{_THEIRS['max_attempts']} {_THEIRS['backoff']}".split()}
_SENT = frozenset({"topic", "payload"})
"""Arguments of each call that sends, beside its options."""


def unfolded(cls: C) -> C:
    """The class, whose constructor and public methods show the options behind `**options`."""
    for name, method in vars(cls).items():
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            for argument, annotation in method.__annotations__.items():
                if found := _UNPACKED.fullmatch(str(annotation)):
                    _unfold(method, argument, getattr(_options, found[1]))
    return cls


def _unfold(method: Callable[..., Any], argument: str, kind: Any) -> None:
    signature = inspect.signature(method)
    own = [each for name, each in signature.parameters.items() if name != argument]
    options = [_option(name, hint) for name, hint in _hints(kind).items()]
    vars(method)["__signature__"] = signature.replace(parameters=[*own, *options])
    method.__doc__ = f"{inspect.getdoc(method)}\n\n{chr(10).join(meanings(kind))}".rstrip()


def _option(name: str, hint: str) -> inspect.Parameter:
    default = None if hint.endswith("None") else DEFAULTS[name]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


@cache
def meanings(kind: Any) -> list[str]:
    """What each option means, from the docstrings of the kinds that it consists of, itself the last."""
    kinds = [each for each in vars(_options).values() if hasattr(each, "__optional_keys__")]
    parts = [each for each in kinds if _hints(each).items() <= _hints(kind).items()]
    found = {name: text for each in parts for text, name in _MEANING.findall(inspect.getdoc(each) or "")}
    return [found[name] for name in _hints(kind)]


@cache
def _hints(kind: Any) -> dict[str, str]:
    """Options and their types, as written."""
    return {name: getattr(hint, "__forward_arg__", hint) for name, hint in kind.__annotations__.items()}


def check(allowed: frozenset[str], options: Mapping[str, object]) -> None:
    """Check the option names of a call. Raises TypeError for an unknown one."""
    if not options.keys() <= allowed:
        name = min(options.keys() - allowed)
        raise TypeError(f"got an unexpected keyword argument {name!r}{_advice(name, allowed)}")


def check_retry(retry: object) -> None:
    """Check `retry=`. Raises BadArgument, and TypeError for an unknown member."""
    if not isinstance(retry, Mapping):
        raise BadArgument("retry", f"must be a mapping of max_attempts and backoff, not {retry!r:.100}")
    check(RetryOptions.__optional_keys__, retry)


def ours_for(name: str, known: Collection[str]) -> str | None:
    """Our word for a word of others, of those that are known where it was used."""
    return next((ours for ours, theirs in _THEIRS.items() if ours in known and name in theirs.split()), None)


def _advice(name: str, allowed: frozenset[str]) -> str:
    known = allowed | _SENT if "deliver_to" in allowed else allowed
    if ours := ours_for(name, known):
        return f": fasti calls it {ours}"
    if name in _TRIES:
        return (
            ": its receivers decide how often a message is tried, with max_attempts and backoff of "
            "subscribe() and groups.put(), or retry of Worker.on() and endpoints.put()"
        )
    near = get_close_matches(name, known, 1)
    return f": is {near[0]} meant?" if near else ""
