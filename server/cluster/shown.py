"""Whether a request is another node's: it shows the cluster's key."""

import hmac

from aiohttp import web

from ..http.problems import Problem


def check_shown(request: web.Request, key: str) -> None:
    """Raises Problem unless it shows `key`."""
    shown = request.headers.get("Authorization", "")
    if not hmac.compare_digest(shown.encode(), f"Bearer {key}".encode()):
        raise Problem("unauthorized", "this is for the nodes of the cluster")
