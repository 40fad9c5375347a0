"""Floor 2: the only room that touches disk. Rows and their places, group commits, reading, recovery.

The store
    store.py         the contract: ordered tables of bytes, atomic batches, an explicit sync
    rocks.py         the contract on RocksDB
    sectors.py       a few bytes in a file of their own, twice, each with a checksum; how a path is synced
    mark.py          a time that can be written even on a full disk: the bound of dispatch
    synced.py        how much was synced: tells a log that was cut off later from one torn by a kill
    ours.py          whether a data directory may be ours
    private.py       file modes of the data directory
    scan.py          the guarded iterators over a RocksDB column family
    scrub.py         reads all tables of a store, to find damage
    errors.py        StoreFailed, Corrupt and others

What rows say
    keys.py          the one place that knows key bytes
    fields.py        a stored message as values
    record.py        a stored message as bytes; stubs, what a cancel or move leaves
    properties.py    the MQTT properties of a stored message, read and written
    tables.py        the values of the small tables: directory, cursor, dedupe, sessions
    schedules.py     rows of recurring schedules, and what a group writes for them
    jobs.py          rows of pipeline jobs
    endpoints.py     rows of webhook endpoints
    order.py         rows of groups that order by key
    fate.py          expired and late messages: does dispatch still deliver them
    state.py         state of a message, and when dispatch reached it

Writing: requests are decided against the open group, which becomes one batch
    commit.py        the requests: put, cancel, move, revive, release
    open_batch.py    the batch that is being composed, and where messages go in it
    group_commit.py  a written batch; caps
    draft.py         a message that wants a position, the terms of its key, and the outcomes of requests
    steps.py         long decisions, in steps
    gathered.py      the rows of one, sorted by key
    dedupe.py        idempotency keys: drafts that were accepted before
    adopt.py         messages that bring their own ids
    upsert.py        the message under a key: made, changed or cancelled, by version or debounced
    delivery_rows.py  deliveries that have rows: those that wait for their next try, and dead letters
    deliveries.py    what changes them: wait, bury, end
    burials.py       unfinished messages of an ended place, until all are settled
    waiting.py       counts of pending and held messages, and of retries
    kept.py          deliveries that are done and stay, and their results
    ended.py         how deliveries ended, until the archive has it
    owned.py         counts of pending messages by owner
    withheld.py      messages that dispatch has given to nobody, as their senders may not send them now
    cells.py         histogram of each slice's messages over time: saved now and then, recounted after a kill

Reading
    read.py          by id, or a range of the timeline in position order
    unreadable.py    corrupt ranges: found, remembered, skipped

Cutting and dropping slices
    handover.py      a split in the writer: begin, cut, and counting what arrives in between
    borrow.py        shards that several slices share, and what each slice holds of them
    archives.py      where an archive lies, what its manifests say, and whether its files are right
    archived.py      the archive's commits as recorded in the store
    expiry.py        dropping whole slices, the oldest ones
    garbage.py       garbage collection of expired slices' rows and of their names in dedupe and moved

Opening and checking
    recover.py       from disk to `Opened`, and back after a failure
    upgrade.py       from format 1, of release 0.1.0
    pointers.py      rows that point at other rows; dangling ones
    verify.py        checks derived data against the rows; repair

Several machines
    changes.py       a batch as values, and as bytes for a log
    overlay.py       batches that are readable, but not yet in the store
    replicated.py    the store contract on a log: a batch is durable when the log has it
    log/             the log of group commits, on an engine that replicates

The values that rows encode are those of timeline/; server/engine/writer.py decides when a batch is composed
and synced.
"""
