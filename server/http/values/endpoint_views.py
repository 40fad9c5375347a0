"""Views of endpoints: the settings as sent, without secrets, and the state of the group."""

from ...settings.times import format_ms
from ...webhook.last_posts import Answer
from ...webhook.registry import signing
from ...webhook.signing import fingerprint
from ...webhook.webhooks import EndpointStatus
from . import shapes
from .views import Progress, keeping_view, place_view, retry_view


def endpoint_view(
    status: EndpointStatus, progress: Progress | None, now_ms: int, answers: int
) -> shapes.Endpoint:
    """`progress`: its group's; `now_ms`: the machine's time, which decides the valid secrets; `answers`: how
    many last ones."""
    endpoint, group, last_posts = status
    row, failing = endpoint.row, last_posts.failing
    view: shapes.Endpoint = {
        "name": endpoint.name,
        "url": row.url,
        "state": "paused" if group is not None and group.is_paused else "active",
        "secret": _secret(status, now_ms),
        "headers": sorted(row.headers),
        "concurrency": endpoint.concurrency,
        "timeout": endpoint.timeout_s,
        "body": "envelope" if row.is_enveloped else "raw",
        "created_at": format_ms(row.created_ms),
        "changed_at": format_ms(row.changed_ms),
        "failing": {
            "share": round(failing.share, 3),
            "of": failing.of,
            "last_reason": failing.last_reason or None,
        },
        "last_answers": [_answer(one) for one in last_posts.answers(answers)],
    }
    if row.gone:
        view["reason"] = row.gone
    if group is None or progress is None:
        return view
    return {
        **view,
        **place_view(group, progress),
        **keeping_view(group),
        "name": endpoint.name,
        "retry": retry_view(group),
    }


def _answer(answer: Answer) -> shapes.Answer:
    return {
        "at": format_ms(answer.at_ms),
        "id": answer.message,
        "status": answer.status or None,
        "reason": answer.reason or None,
        "seconds": answer.latency_ms / 1_000,
    }


def _secret(status: EndpointStatus, now_ms: int) -> shapes.Secret | None:
    """The newest secret by its fingerprint, and until when the former signs too."""
    kept = signing(status.endpoint.row.secrets, now_ms)
    if not kept:
        return None
    shown: shapes.Secret = {"fingerprint": fingerprint(kept[0].secret)}
    if len(kept) > 1:
        shown["former"] = fingerprint(kept[1].secret)
        shown["former_until"] = format_ms(kept[1].until_ms)
    return shown
