"""Opens a log by its URL: chooses the engine and checks it.

    nats://[user:password@]a[:4222],b,c        jetstream.py
    tls://…                                    the same, over TLS
    postgresql://[user[:password]@]a[:5432],b/database      postgres.py

The driver is imported when a log is opened: a single node has none installed.
"""

import re
from collections.abc import Sequence

from .chained import ChainedLog, open_engine
from .engine import Clock, Engine
from .errors import Unfit
from .record import PART_BYTES, part_bytes

NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


def open_log(
    url: str,
    name: str,
    clock: Clock,
    *,
    deadline_s: float,
    keys: Sequence[str],
    must_replicate: bool = True,
) -> ChainedLog:
    """The log of the timeline `name`.

    `deadline_s`: maximum time of any call, including this one. `keys` of the cluster: claims are made with
    the first, and read with any. `must_replicate`: refuse an engine that would lose acknowledged records with
    one machine. Raises LogDown, Unfit; NoLog: it was never made, or is lost; ValueError for an invalid URL
    or name.
    """
    engine = _engine(url, name, must_replicate)
    log = open_engine(engine, clock, deadline_s, keys)
    if part_bytes(engine.largest) < PART_BYTES:
        log.close()
        raise Unfit(f"the log's engine takes records of {engine.largest:,} bytes, 1 MiB is needed")
    return log


def unopened_log(
    url: str, name: str, clock: Clock, *, deadline_s: float, keys: Sequence[str], must_replicate: bool = True
) -> ChainedLog:
    """A log that may not exist, to `begin` it. Raises Unfit, ValueError."""
    return ChainedLog(_engine(url, name, must_replicate), clock, deadline_s, keys)


def _engine(url: str, name: str, must_replicate: bool) -> Engine:
    if not NAME.fullmatch(name):
        raise ValueError(f"a log is named with small letters, digits and _, not {name!r}")
    scheme = url.partition("://")[0]
    try:
        if scheme in ("nats", "tls"):
            from .jetstream import JetStream

            return JetStream(url, name, must_replicate=must_replicate)
        if scheme in ("postgresql", "postgres"):
            from .postgres import Postgres

            return Postgres(url, name, must_replicate=must_replicate)
    except ModuleNotFoundError as error:
        raise Unfit(f"{error.name} is missing: pip install 'fasti-server[cluster]'") from error
    raise ValueError(f"a log is at nats://… or postgresql://…, not at {scheme}://…")
