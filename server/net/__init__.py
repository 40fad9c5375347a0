"""Sockets: incoming connections, and writing to them.

    files.py     limit of open files
    networks.py  networks of clients, and the rate limit of new connections
    crowd.py     all connections under one bound: admission and eviction
    opening.py   a connection as the loop sees it
    lingering.py  closes a socket so that the client can read the last answer
    proxies.py   finds the client behind a trusted proxy
    loop_time.py  shares the loop's time by owner in each turn; connections that obey it
    acceptor.py  listening sockets, and connections before they have a protocol
    revoked.py   lists of revoked certificates
    tls.py       certificates, reread when their files change
    browsers.py  pages in a browser that may use this server
    outgoing.py  connections with something to write, flushed at or before the end of a loop turn
    unsent.py    counts bytes that TLS has not sent yet
    pool.py      bounds the bytes that wait at all connections together

Each imports only what stands above it.
"""
