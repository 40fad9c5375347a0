"""Sockets: how connections come in, and what is sent on them.

    files.py     how many files the process may open
    networks.py  where clients come from, and how many connections begin in a second
    crowd.py     all connections under one bound: who is taken, and who makes room
    opening.py   a connection as the loop sees it
    lingering.py  how a socket ends so that the last answer is read
    proxies.py   whose client a connection is that comes by a trusted proxy
    loop_time.py  the loop's time, shared by owner in each turn; connections that keep to it
    acceptor.py  sockets that listen, and connections before they have a protocol
    revoked.py   lists of revoked certificates: whether one is on them
    tls.py       certificates, read again when their files change
    browsers.py  which pages in a browser may speak to this server
    outgoing.py  connections with something to send, flushed when the turn of the loop ends or before
    unsent.py    counts what TLS has not sent yet
    pool.py      what waits at all connections together, and who is relieved when it is too much

Each imports only what stands above it.
"""
