"""Floor 3: sockets, the clock and the wiring between them.

    clock.py         the system's clocks, and one that stands still until it is told
    alarm.py         rings when it is time, to the tenth of a millisecond
    outgoing.py      who has something to send, when the turn of the loop ends or before
    times.py         times as people write them: text to UTC ms and back
    kinds.py         how a value of config.toml is read and shown
    config.py        what can be set, and where each value is from
    logs.py          logging: one line an event, as text or JSON
    networks.py      where clients come from, how many are there and how many begin in a second
    files.py         how many files the process may have open
    watch.py         files of keys and certificates, read again when they change
    accepting.py     sockets that listen, and connections before they have a protocol
    revoked.py       lists of revoked certificates: whether one is on them
    tls.py           certificates, read again when their files change
    unsent.py        what TLS has not sent, counted
    browsers.py      which pages in a browser may speak to this server
    version.py       which version of the server this is
    trace_context.py  which trace a message belongs to, as it is sent and kept
    build.py         which form of the hot modules runs: as source, or compiled

    rider.py         who writes along with each group commit
    writer.py        requests in, one group commit after another, answers out after the sync
    loader.py        keeps the wheel filled from the slices on disk
    mending.py       what the store cannot read any more: noted, and dispatched late when it comes back
    held.py          messages that wait because the clock was set back, moved when it comes back
    metrics.py       what is counted as it happens
    tracing.py       spans of OpenTelemetry, where the environment asks for them

    auth/            keys, and who may do what
    delivery/        who gets a message: sessions, dispatch, replay; knows no socket
    schedules/       recurring schedules, and new rules of time zones
    jobs/            pipeline jobs, the server's side
    codec/           MQTT bytes to values and back

    pull/            messages for who asks for them
    webhook/         a door by which messages leave: they are posted

    mqtt/            one connection, and where it comes in
    http/            the calls, and what they read and answer

    console/         pages in the browser, drawn from the calls

    core.py          the parts, built and connected, without a loop, a thread or a socket
    bounds.py        the RAM that the configured bounds allow, as a sum
    figures.py       what the server says of itself: /metrics and $SYS/#
    standing.py      where each session and group stands, for /metrics
    housekeeping.py  what has to be done now and then
    resting.py       memory that work has left behind, given back
    simulation.py    walks of a simulated clock
    lease.py         how long a node may lead without a sign that it does
    disk_thread.py   the thread that waits for the disk
    app.py           a core turned in rounds on an event loop
    site.py          the HTTP side put together, of the app's parts

    serving.py       a server with its listeners: in which order things begin and end

    cluster/         several nodes, one of which leads

    inspecting.py    what a stopped server's data has in it, told
    offline.py       commands on a stopped server's data
    run.py           the process: a server alone or a node, and signals
    __main__.py      the command line

What stands lower here imports what stands higher, never the other way.
"""

import os
from pathlib import Path

from .build import choose

choose(os.environ, Path(__file__).parents[1])
