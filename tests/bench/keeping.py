"""What it costs that groups keep what is done, beside one that keeps what failed (the default), or nothing.

drain group keep   four members of a group over MQTT, all messages due at once
pull keep          four workers that lease and ack 100 at a time
ack one            four workers that lease 100 and ack one after the other, and with a result of 200 B
"""

import json
from contextlib import ExitStack
from functools import partial

from .due import TOPICS, at_once, drained_by
from .exchange import line_to
from .http import ask, post, taken_end
from .mqtt import subscribed
from .process import Address, Server
from .pulling import ACK, BATCH, LEASE_ID, Tally, entry, fill, pull
from .race import Entry, Sample, contenders, race
from .results import Env, Result

KEEPS = ("failed", "all", "none")
RESULT_BYTES = 200
RESULT = b'"' + b"r" * (RESULT_BYTES - 2) + b'"'


async def keeping(env: Env) -> list[Result]:
    results, count = [], env.sizes.pull
    with ExitStack() as stack:
        servers = stack.enter_context(contenders(env))
        (_, ours), others = servers[0], servers[1:]
        drains = [Entry(keep, partial(_drained, env, ours, keep), ACK) for keep in KEEPS]
        drains += [Entry(name, partial(_drained, env, server, ""), ACK) for name, server in others]
        results += await race(env, "drain group keep failed", "msg/s", drains)
        pulls, singles = [], []
        for keep, server in [*((keep, ours) for keep in KEEPS), *(("", server) for _, server in others)]:
            name, topic = f"keep-{keep}", f"bench/keep-{keep}"
            await _group(server, name, topic, keep)
            filled = partial(fill, topic=topic)
            pulls.append(
                entry(keep or "before", ACK, server, server.http, count, filled, partial(pull, group=name))
            )
        for kind, result in (("no result", b""), ("result of 200 B", RESULT)):
            name, topic = f"one-{len(result)}", f"bench/one-{len(result)}"
            await _group(ours, name, topic, "failed")
            work = partial(_one_by_one, group=name, result=result)
            singles.append(
                entry(kind, ACK, ours, ours.http, max(1, count // 10), partial(fill, topic=topic), work)
            )
        results += await race(env, "pull keep failed", "msg/s", pulls)
        results += await race(env, "ack one", "msg/s", singles)
    return results


async def _group(server: Server, name: str, topic_filter: str, keep: str) -> None:
    body = {"filter": topic_filter} | ({"keep": keep} if keep else {})
    request = post(f"/v1/groups/{name}", json.dumps(body).encode()).replace(b"POST", b"PUT", 1)
    await ask(server.http, request)


async def _drained(env: Env, server: Server, keep: str, run: int) -> Sample:
    topic, name = f"bench/drained-{keep}/{run}", f"drained-{keep}"
    await _group(server, name, f"{topic}/+", keep)
    async with subscribed(server.mqtt, f"d{keep}", TOPICS, lambda _: f"$share/{name}/{topic}/+") as some:
        due = await at_once(env, server, lambda n: f"{topic}/{n % TOPICS}")
        return await drained_by(server, some, due, env.sizes.drain)


async def _one_by_one(at: Address, tally: Tally, group: str, result: bytes) -> None:
    path = f"/v1/groups/{group}/messages"
    line = await line_to(at, taken_end)
    lease = post(f"{path}:lease", json.dumps({"max": BATCH, "wait": 1}).encode())
    more = b',"result":' + result if result else b""
    while ids := LEASE_ID.findall(await line.ask(lease)):
        for one in ids:
            await line.ask(post(f"{path}:ack", b'{"lease_ids":["%b"]%b}' % (one, more)))
            tally.acked(1)
    line.close()
