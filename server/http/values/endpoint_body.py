"""An endpoint request: the JSON of a body -> a checked URL and settings.

    {"url": "https://example.com/hook", "secret": "whsec_…", "timeout": "5s", "retry": {"max_attempts": 8}}

Absent members get the server's defaults, except `secret`: absent it stays as it was, and null removes it. So
an endpoint can be changed without knowing its secret, which is never shown.
"""

from typing import Annotated, Literal

import msgspec
from msgspec.structs import asdict

from ...delivery.terms import LASTING, TermsError, read_keeping, read_terms
from ...settings.config import POST_MS_MAX, POST_MS_MIN, POSTS_MAX, Config
from ...webhook.request import HEADERS_BYTES_MAX, is_header
from ...webhook.signing import SecretError, secret_of
from ...webhook.targets import TargetError, check_allowed, checked_url
from ...webhook.webhooks import EndpointSettings
from .bodies import FieldError, delay_ms
from .group_body import KeepingRequest, RetryRequest, field_of, limits_of
from .scalars import Delay

HEADERS_MAX = 64
_URL = msgspec.Meta(max_length=2_048, description="absolute, of https, without user and password")
_SECRET = msgspec.Meta(description="whsec_ and base64 of 24 to 64 bytes; null: posts are not signed")

_BODY = msgspec.Meta(description="what is posted: the payload, or JSON with the payload in it")


class EndpointRequest(KeepingRequest, kw_only=True):
    """An endpoint as sent; types only."""

    url: Annotated[str, _URL]
    secret: Annotated[str, _SECRET] | msgspec.UnsetType | None = msgspec.UNSET
    headers: dict[str, str] | None = None
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=POSTS_MAX)] | None = None
    timeout: Delay | None = None
    body: Annotated[Literal["raw", "envelope"], _BODY] | None = None
    retry: RetryRequest | None = None


def wanted_of(request: EndpointRequest, config: Config) -> EndpointSettings:
    """Check an endpoint request. Raises FieldError."""
    try:
        check_allowed(checked_url(request.url), config.webhook)
    except TargetError as error:
        raise FieldError("url", str(error)) from None
    requested = asdict(request) | asdict(request.retry or RetryRequest()) | limits_of(request.per_key)
    try:
        terms = read_terms(requested.get, config)
        keeping = LASTING.changed_by(read_keeping(requested.get, config)).checked()
    except TermsError as error:
        is_retry = error.name in ("max_attempts", "backoff")
        field = f"retry.{error.name}" if is_retry else field_of(error.name)
        raise FieldError(field, error.detail) from None
    if not keeping.expiry_s:
        raise FieldError("expiry", "must be longer than 0, or never")
    return EndpointSettings(
        request.url,
        _secret(request.secret),
        _headers(request.headers or {}),
        request.concurrency or 0,
        0 if request.timeout is None else _timeout_ms(request.timeout),
        request.body == "envelope",
        terms,
        keeping,
    )


def _secret(text: str | msgspec.UnsetType | None) -> bytes | msgspec.UnsetType | None:
    if not isinstance(text, str):
        return text
    try:
        return secret_of(text)
    except SecretError as error:
        raise FieldError("secret", str(error)) from None


def _headers(headers: dict[str, str]) -> dict[str, str]:
    if len(headers) > HEADERS_MAX:
        raise FieldError("headers", f"at most {HEADERS_MAX} are allowed, there are {len(headers)}")
    if sum(len(name) + len(value) for name, value in headers.items()) > HEADERS_BYTES_MAX:
        raise FieldError("headers", f"have more than {HEADERS_BYTES_MAX:,} characters in all")
    for name, value in headers.items():
        if not is_header(name, value):
            raise FieldError("headers", f"{name[:64]!r} is not a valid header name, or is set by the server")
    lower = {name.lower(): value for name, value in headers.items()}
    if len(lower) < len(headers):
        raise FieldError("headers", "a name appears twice")
    return lower


def _timeout_ms(timeout: str | float) -> int:
    timeout_ms = delay_ms("timeout", timeout)
    if not POST_MS_MIN <= timeout_ms <= POST_MS_MAX:
        bounds = f"from {POST_MS_MIN // 1_000} to {POST_MS_MAX // 1_000:,} seconds"
        raise FieldError("timeout", f"must be {bounds}")
    return timeout_ms
