"""`fasti-server inspect`: the data of a stopped server, as text or JSON, complete or as a summary.

Names are those of the HTTP API where it has them. It reads only small tables: the directory of slices and
shards, and the rows of sessions; no messages.
"""

from collections.abc import Iterator
from typing import Any

from shards import keys
from shards.recover import format_of, place_in_log, read_directory, stored_cursor
from shards.store import Store, Table
from shards.tables import session_of
from timeline.position import at_of
from timeline.slices import Shard, Slice

from ..settings.times import format_ms

Report = dict[str, Any]
STATE = ("dir", "format", "in_log", "horizon", "bound", "last_seq", "running_s")
"""The stored state of dispatch, in both reports. `in_log`: how far a cluster's node has followed the log;
None: not of a cluster. `bound`: messages may have gone out up to then. `running_s`: over all starts."""


def inspection_of(store: Store, path: str, max_slices: int) -> Report:
    """Read the complete report. Raises Corrupt."""
    cursor, place = stored_cursor(store, 0), place_in_log(store)
    groups, sessions = list[str](), list[Report]()
    for key, value in store.scan(Table.SESSIONS, b"", keys.LAST):
        if keys.is_of_group(key):
            groups.append(key.decode().removeprefix(keys.GROUP_PREFIX))
            continue
        subscriptions = [{"filter": s.filter, "qos": s.qos} for s in session_of(value).subscriptions]
        sessions.append({"client_id": key.decode(), "subscriptions": subscriptions})
    return {
        "dir": path,
        "format": format_of(store),
        "in_log": None if place is None else str(place),
        "horizon": format_ms(at_of(cursor.horizon)),
        "bound": format_ms(cursor.bound_ms),
        "last_seq": cursor.seq,
        "running_s": cursor.running_ms // 1000,
        "slices": [_slice(piece) for piece in read_directory(store, max_slices)],
        "sessions": sessions,
        "groups": groups,
    }


def summary_of(found: Report, split_above: int) -> Report:
    """The summary. `split_above`: rows above which a slice is `overfull`."""
    slices = found["slices"]
    shards = [shard for piece in slices for shard in piece["shards"]]
    own = [shard for shard in shards if "borrowed" not in shard]
    return {
        **{name: found[name] for name in STATE},
        "slices": len(slices),
        "overfull": sum(piece["count"] > split_above for piece in slices),
        "shards": len(own),
        "borrowed": len(shards) - len(own),
        "count": sum(piece["count"] for piece in slices),
        "live": sum(piece["live"] for piece in slices),
        "bytes": sum(piece["bytes"] for piece in slices),
        "oldest": min((shard["first"] for shard in own), default=None),
        "newest": max((shard["last"] for shard in own), default=None),
        "sessions": len(found["sessions"]),
        "groups": len(found["groups"]),
    }


def lines_of(found: Report) -> Iterator[str]:
    """The report as text."""
    yield f"{found['dir']}: horizon {found['horizon']}, bound {found['bound']}"
    yield f"last seq {found['last_seq']}, running {found['running_s']} s, {len(found['slices'])} slices"
    yield "slice                     end                       gen  rows       live       bytes        shards"
    for piece in found["slices"]:
        own = sum("borrowed" not in shard for shard in piece["shards"])
        yield (
            f"{piece['start']:25} {piece['end']:25} {piece['generation']:<4} "
            f"{piece['count']:<10} {piece['live']:<10} {piece['bytes']:<12} {own}"
        )
        for shard in piece["shards"]:
            home = shard.get("borrowed")
            if home is not None:
                of = f"{home['start']} generation {home['generation']}"
                yield (
                    f"  shard {shard['shard']}: borrowed from {of}, "
                    f"which had {shard['count']} rows when it was cut"
                )
                continue
            rows = f"{shard['count']} rows, {shard['live']} live, {shard['bytes']} bytes"
            span = f"first {shard['first']}, last {shard['last']}"
            yield f"  shard {shard['shard']}: structure {shard['structure']}, {rows}, {span}"
    for group in found["groups"]:
        yield f"group {group}"
    for session in found["sessions"]:
        filters = ", ".join(f"{s['filter']} (QoS {s['qos']})" for s in session["subscriptions"])
        yield f"session {session['client_id']}: {filters or 'no subscriptions'}"


def summary_lines(found: Report) -> Iterator[str]:
    """The summary as text, a line each."""
    for name, value in found.items():
        text = f"{value:,}" if isinstance(value, int) else "-" if value is None else value
        yield f"{name.replace('_', ' '):10} {text}"


def _slice(piece: Slice) -> Report:
    """A slice and its shards. `borrowed`: from this slice, with the counts from when it was cut."""
    shards = [_shard(shard) for shard in piece.shards.values()]
    for shard in piece.borrowed.values():
        home = {"start": format_ms(shard.home.start_ms), "generation": shard.home.generation}
        shards.append({**_shard(shard), "borrowed": home})
    return {
        "start": format_ms(piece.start_ms),
        "end": format_ms(piece.end_ms),
        "generation": piece.generation,
        "count": piece.count,
        "live": piece.live,
        "bytes": piece.bytes,
        "shards": shards,
    }


def _shard(shard: Shard) -> Report:
    return {
        "shard": shard.number,
        "structure": shard.structure,
        "count": shard.count,
        "live": shard.live,
        "bytes": shard.bytes,
        "first": format_ms(at_of(shard.first)),
        "last": format_ms(at_of(shard.last)),
    }
