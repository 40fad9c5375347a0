"""The log of group commits for several machines, on an engine that replicates.

The interface
    chained.py    the log: append, claim, read, trim; the fence, unknown outcomes, deadlines
    errors.py     Fenced, LogDown and others
    opening.py    opens a log by its URL; the only file that knows all engines

The implementation
    record.py     one record as bytes: sealed, and chained to the one before it
    chain.py      what follows a record, and what is passed over
    flight.py     records that were sent and are not settled
    engine.py     the contract of an engine, and its two errors
    line.py       calls with a timeout; a new connection after a failed one

Engines
    jetstream.py  NATS JetStream
    nats.py       a connection to a server of NATS
    feed.py       records that a server of NATS pushes
    postgres.py   PostgreSQL

The driver of PostgreSQL comes with the extra `cluster`. A single node does not have it installed.
"""
