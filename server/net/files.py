"""Limit of open files: each connection is one, and so is each table of the store."""

import logging
import resource

log = logging.getLogger(__name__)

OTHERS = 1_000
"""Files of the store and the listeners, besides the connections."""


def allow_open_files(connections: int) -> int:
    """Raise the soft limit as far as `connections` need and the hard limit allows. Returns the new limit.

    Many systems start a process with a soft limit of 1,024 and a much higher hard limit.
    """
    wanted = connections + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning(
            "open files: %d allowed, too few for %d connections of MQTT, HTTP and webhooks (ulimit -n)",
            allowed,
            connections,
        )
    return max(allowed, soft)
