"""Floor 3: sockets, the clock and the wiring between them.

    build.py         which form of the hot modules runs: as source, or compiled
    settings/        what can be set, and how a value is read
    fair.py          shares of a bound, and turns, by owner
    observe/         logs, metrics, traces
    net/             sockets: how connections come in, and what is sent on them
    engine/          requests -> group commits -> answers; rows on disk -> the wheel

    auth/            keys, and who may do what
    delivery/        who gets a message: sessions, dispatch, replay; knows no socket
    schedules/       recurring schedules, and new rules of time zones
    jobs/            pipeline jobs, the server's side
    codec/           MQTT bytes to values and back

    pull/            messages leased by workers over HTTP
    webhook/         messages posted to URLs

    mqtt/            one connection, and where it comes in
    http/            the calls, and what they read and answer

    console/         pages in the browser, drawn from the calls

    core.py          the parts, built and connected, without a loop, a thread or a socket
    reports/         what the server tells about its state
    rounds/          what runs in each turn of the loop, and what runs now and then
    site.py          the HTTP side put together, of the app's parts
    serving.py       a server with its listeners: in which order things begin and end

    cluster/         several nodes, one of which leads

    offline.py       commands on a stopped server's data
    run.py           the process: a server alone or a node, and signals
    __main__.py      the command line

What stands lower here imports what stands higher, never the other way.
"""

import os
from pathlib import Path

from .build import choose

choose(os.environ, Path(__file__).parents[1])
