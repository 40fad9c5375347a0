"""Floor 3: sockets, the clock and the wiring between them.

    build.py         chooses sources or compiled hot modules
    settings/        definitions of settings, and how values are read
    fair.py          shares of a bound, and turns, by owner
    observe/         logs, metrics, traces
    net/             sockets: incoming connections, and writing to them
    engine/          requests -> group commits -> answers; rows on disk -> the wheel

    auth/            keys and rights
    delivery/        delivery of messages: sessions, dispatch, replay; knows no socket
    schedules/       recurring schedules, and changes of time zone rules
    codec/           MQTT bytes to values and back

    pull/            messages leased by workers over HTTP
    webhook/         messages posted to URLs
    jobs/            pipeline jobs on the server

    mqtt/            MQTT: connections and listeners
    http/            HTTP: the calls, their bodies and answers

    console/         pages in the browser, drawn from the calls

    core.py          the parts, built and connected, without a loop, a thread or a socket
    reports/         reports on the server's state
    rounds/          work in each turn of the loop, and periodic work
    site.py          builds the HTTP side from the app's parts
    serving.py       a server with its listeners: order of start and stop

    cluster/         several nodes, one of which leads

    offline.py       commands on a stopped server's data
    run.py           the process: a server alone or a node, and signals
    __main__.py      the command line

Lower ones import higher ones, never the reverse.
"""

import os
from pathlib import Path

from .build import choose

choose(os.environ, Path(__file__).parents[1])
