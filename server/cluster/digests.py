"""Digests of what should be the same on all nodes: the keys, and the settings that decide about messages.

A difference does not keep a node from leading: it is told, in `why`.
"""

from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

from ..settings.config import Config
from .members import Member, Row

DIGITS = 16
NAMES: dict[str, Callable[[Member], str]] = {
    "keys": lambda member: member.keys_digest,
    "settings": lambda member: member.settings_digest,
}


def api_keys_digest(config: Config) -> str:
    """Digest of the files with keys, passwords and rules; "none": there are none. Empty: one cannot be
    read."""
    texts = (config.auth.keys_file, config.mqtt.password_file, config.mqtt.acl_file)
    if not any(texts):
        return "none"
    digest = sha256()
    try:
        for text in texts:
            found = Path(text).read_bytes() if text else b""
            digest.update(b"%d " % len(found) + found)
    except OSError:
        return ""
    return digest.hexdigest()[:DIGITS]


def settings_digest(config: Config) -> str:
    """Digest of the settings that decide which messages are accepted and what becomes of them, without those
    derived from a machine's memory."""
    slices, sessions, mqtt, webhook = config.slices, config.sessions, config.mqtt, config.webhook
    deciding = (
        *(slices.retention_ms, slices.kept_behind_ms, slices.expire_by, slices.archive),
        *(config.dead.retention_ms, config.dead.max_bytes, config.replay.filters, config.replay.min_qos),
        *(sessions.expiry_max_ms, sessions.max_attempts, sessions.backoff_ms, sessions.ack_timeout_ms),
        *(mqtt.deny_subscribe, mqtt.maximum_qos, mqtt.retain_available),
        *(config.limits.max_delay_ms, config.limits.max_payload),
        *(webhook.enabled, webhook.allow_private, webhook.allow_http),
    )
    return sha256(repr(deciding).encode()).hexdigest()[:DIGITS]


def differing(mine: Member, rows: Iterable[Row]) -> list[str]:
    """The differences between nodes, as text: one line for each kind.

    With different `takeover_after` a node may lead while the former leader still waits for its lease to end.
    """
    lines = []
    alive = [row.member for row in rows if row.is_alive and row.member.node != mine.node]
    for name, digest in NAMES.items():
        others = sorted(one.node for one in alive if digest(one) and digest(one) != digest(mine))
        if others and digest(mine):
            lines.append(f"this node's {name} differ from those of {', '.join(others)}")
    if mine.takeover_ms:
        waits = {one.node: one.takeover_ms for one in alive if one.takeover_ms not in (0, mine.takeover_ms)}
        others = [f"{ms / 1000:g} s on {node}" for node, ms in sorted(waits.items())]
        if others:
            lines.append(f"cluster.takeover_after is {mine.takeover_ms / 1000:g} s here, {', '.join(others)}")
    return lines
