"""Authentication and authorization: keys, passwords, and the topics that each may publish to, subscribe to
and receive.

    rights.py      principals: scopes, and allowed topics
    rate_limit.py  rate limiter (token bucket)
    hashes.py      hashes of secrets: made, checked
    keys_file.py   the server's own keys: read, added, rotated, revoked
    mosquitto.py   reads mosquitto's password file and ACL file
    backoff.py     back-off after wrong keys, by network and name
    checking.py    slow checks: a queue for a few threads, in turns by network
    keyring.py     all keys of a server: checks, cache, rereading of files
    last_use.py    last use of each key
    commands.py    `keys add|ls|revoke|rotate`

Nothing here knows a protocol or a message. A protocol asks the keyring once who a client is, and gets a
`Principal`. It stays right when the files change: its rules are replaced in it, and a revoked key leaves it
without any right.

Each imports only what stands above it.
"""
