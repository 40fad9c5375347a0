"""Floor 2: the only room that touches disk. Rows and where they lie, group commits, reading, recovery.

The store
    store.py         the contract: ordered tables of bytes, atomic batches, an explicit sync
    rocks.py         the contract on RocksDB
    memory.py        the contract in RAM: the model that RocksDB is held against, and what most tests run on
    sectors.py       a few bytes in a file of their own, twice, each with a checksum
    mark.py          a time that can be written on a full disk: how far dispatch may go then
    synced.py        how much was synced: a log cut off since is told from one that a kill tore
    private.py       modes of the data directory and of what is written
    scan.py          the guarded iterators over a RocksDB column family
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
    fate.py          what dispatch makes of a message that is past its time
    state.py         what has become of a message: its state, and when dispatch came to it

Writing: requests are decided against the open group, which becomes one batch
    commit.py        the requests: put, cancel, move, revive, release
    open_group.py    the group that is being composed, and where messages go in it
    outcome.py       how a cancel or move ended
    group_commit.py  what was written; caps
    draft.py         what asks for a place, and on which terms
    steps.py         a decision that takes long, in steps
    gathered.py      the rows of one, put into the order of their keys
    dedupe.py        which drafts were accepted before
    adopt.py         messages that bring their own ids
    kept.py          messages that are kept for one place alone: the rows of retries and dead letters
    retries.py       a message that waits for its next try
    dead.py          dead letters, kept until somebody decides
    burials.py       what a place has left undone, until all of it is settled
    waiting.py       how many messages are pending and held, and how many retries
    owned.py         how many messages of each owner are pending
    cells.py         when the messages of each slice are: saved now and then, counted again after a kill

Reading
    read.py          by id, or a stretch of the timeline in position order
    unreadable.py    stretches that cannot be read: found, remembered, worked around

Cutting and dropping slices
    handover.py      a split in the writer: begin, cut; and counting what comes between them
    borrow.py        shards that several slices read, and what each of them holds
    expiry.py        dropping whole slices, the oldest ones
    leavings.py      what expired slices leave, until dedupe and moved have forgotten them

Opening and checking
    recover.py       from what is on disk to `Opened`, and back to it after a failure
    upgrade.py       what an older format had otherwise, made as it is now
    pointers.py      rows that point at others, and at nothing
    verify.py        derived data against the rows; repair

Several machines
    changes.py       a batch as values, and as the bytes that go into a log
    overlay.py       batches that are readable and not yet in the store
    replicated.py    the contract of a store on a log: what the log has is durable
    log/             the log of group commits, on an engine that replicates

What rows stand for are values of timeline/; server/engine/writer.py decides when a group is composed
and synced.
"""
