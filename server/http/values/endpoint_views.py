"""Views of endpoints: the settings as sent, without secrets, and the state of the group."""

from typing import Any

from msgspec import UNSET

from ...settings.times import format_ms
from ...webhook.last_posts import PostResult
from ...webhook.registry import signing
from ...webhook.signing import fingerprint
from ...webhook.webhooks import EndpointStatus
from . import shapes
from .views import group_fields, retry_view


def endpoint_view(
    status: EndpointStatus, place_status: shapes.PlaceStatus | None, now_ms: int, answers: int
) -> shapes.Endpoint:
    """`status_of`: its group; `now_ms`: the machine's time, which decides the valid secrets; `answers`: how
    many last ones."""
    endpoint, group, last_posts = status
    row, failing = endpoint.row, last_posts.failing
    of_group: dict[str, Any] = {}
    if group is not None and place_status is not None:
        of_group = group_fields(group, place_status) | {"retry": retry_view(group)}
    of_group["name"] = endpoint.name
    return shapes.Endpoint(
        **of_group,
        url=row.url,
        state="paused" if group is not None and group.is_paused else "active",
        reason=row.gone or UNSET,
        secret=_secret(status, now_ms),
        headers=sorted(row.headers),
        concurrency=endpoint.concurrency,
        timeout=endpoint.timeout_s,
        body="envelope" if row.is_enveloped else "raw",
        created_at=format_ms(row.created_ms),
        changed_at=format_ms(row.changed_ms),
        failing=shapes.Failing(round(failing.share, 3), failing.of, failing.last_reason or None),
        last_answers=[_answer(one) for one in last_posts.answers(answers)],
    )


def _answer(answer: PostResult) -> shapes.PostResult:
    return shapes.PostResult(
        at=format_ms(answer.at_ms),
        id=answer.message,
        status=answer.status or None,
        reason=answer.reason or None,
        seconds=answer.latency_ms / 1_000,
    )


def _secret(status: EndpointStatus, now_ms: int) -> shapes.Secret | None:
    """The newest secret by its fingerprint, and until when the former signs too."""
    kept = signing(status.endpoint.row.secrets, now_ms)
    if not kept:
        return None
    secret = shapes.Secret(fingerprint(kept[0].secret))
    if len(kept) > 1:
        secret.former, secret.former_until = fingerprint(kept[1].secret), format_ms(kept[1].until_ms)
    return secret
