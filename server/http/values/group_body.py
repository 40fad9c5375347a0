"""A request to create or change a group: settings that a member's SUBSCRIBE could set as well.

    {"filter": "jobs/#", "ack_timeout": "30s", "max_attempts": 5, "backoff": ["1s", "30s"], "rate": 20}

Absent members get the server's defaults. Without `expiry` the group stays until it is deleted.
"""

import msgspec

from timeline.filters import FilterError, levels_of, share_text
from timeline.session import Terms

from ...delivery.terms import LASTING, Keeping, TermsError, read_keeping, read_terms
from ...settings.config import Config
from .bodies import FieldError
from .scalars import Alerts, Attempts, Backoff, Concurrency, Delay, Expiry, Filter, Keep, KeyRate, OnDead

_PER_KEY = "per_key"


class PerKeyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Limits of each ordering key, without order."""

    concurrency: Concurrency | None = None
    rate: KeyRate | None = None


def limits_of(per_key: PerKeyRequest | None) -> dict[str, int | float | str | None]:
    """As terms (server/delivery/terms.py)."""
    limits = {} if per_key is None else msgspec.structs.asdict(per_key)
    return {f"{_PER_KEY}_{name}": value for name, value in limits.items()}


def field_of(term: str) -> str:
    """The field that brings a term."""
    return term.replace(f"{_PER_KEY}_", f"{_PER_KEY}.")


class RetryRequest(msgspec.Struct, forbid_unknown_fields=True):
    """When, and how often, a message is tried again; types only."""

    max_attempts: Attempts | None = None
    backoff: Backoff | None = None


class KeepingRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What a group and an endpoint do with their messages; types only."""

    expiry: Expiry | None = None
    rate: KeyRate | None = None
    order: bool | None = None
    on_dead: OnDead | None = None
    per_key: PerKeyRequest | None = None
    fair: bool | None = None
    keep: Keep | None = None
    result_ttl: Delay | None = None
    alerts: Alerts | None = None


class GroupRequest(KeepingRequest, kw_only=True):
    """A group as sent; types only."""

    filter: Filter
    ack_timeout: Delay | None = None
    max_attempts: Attempts | None = None
    backoff: Backoff | None = None


def text_of(name: str, topic_filter: str, config: Config) -> str:
    """The shared subscription of the group. Raises FieldError."""
    try:
        text = share_text(name, topic_filter)
    except FilterError as error:
        where = "group" if "the group" in str(error) and "missing" not in str(error) else "filter"
        raise FieldError(where, str(error)) from None
    levels = config.limits.topic_levels
    if levels_of(topic_filter.encode()) > levels:
        raise FieldError("filter", f"has more than {levels} levels")
    return text


def terms_of(request: GroupRequest, config: Config) -> tuple[Terms, Keeping]:
    """Terms and expiry of the group. Raises FieldError."""
    requested = msgspec.structs.asdict(request) | limits_of(request.per_key)
    try:
        terms = read_terms(requested.get, config)
        return terms, LASTING.changed_by(read_keeping(requested.get, config)).checked()
    except TermsError as error:
        raise FieldError(field_of(error.name), error.detail) from None
