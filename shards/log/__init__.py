"""The log of group commits, for several machines: an engine that already replicates, behind one contract.

What others see
    contract.py   the contract: append, claim, read, trim
    errors.py     Fenced, LogDown and others
    opening.py    from a URL to an open log; the only file that knows which engines there are

How it is made
    record.py     one record as bytes: sealed, and chained to the one before it
    chained.py    the contract on an engine: the fence, unknown outcomes, deadlines, the chain
    engine.py     what an engine has to do, and the two ways in which it does not
    line.py       calls that are waited for only so long; a fresh connection after one that failed

Engines
    memory.py     in RAM: the model of the others, for tests
    jetstream.py  NATS JetStream
    postgres.py   PostgreSQL

The drivers of the engines come with the extra `cluster`; who runs one node has neither, and imports
neither.
"""
