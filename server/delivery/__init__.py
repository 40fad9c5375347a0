"""Who gets a message, and what becomes of it: knows no socket and no protocol.

What stands lower here imports what stands higher. First what is handed about:

    message.py       a message on its way out: one object for all who get it
    payloads.py      its payload as a JSON value
    tries.py         its failed tries, as they are told with a delivery
    run.py           usual messages that go to the same subscribers, offered as one
    verdict.py       what becomes of a publish
    publish_request.py  a publish as it was read, and wills
    link.py          a connection: implemented by protocols
    write_barrier.py  deliveries at QoS 2, held until they are known to the disk
    place_state.py   a place's rows and its cursor on disk, its wills, and when its client was there
    terms.py         what a subscription may ask for, and what holds where it says nothing
    ahead.py         where the messages of an endpoint stand that is behind
    place.py         a place: reads, has rows, belongs to somebody
    progress.py      how far workers say that they are with a message in flight
    subscriber.py    a session: a place with a link
    rate_limit.py    rate limiters of groups
    picker.py        picks a member of a shared subscription for each message
    shared.py        a group: a place with members and terms

then who has what:

    router.py        topic -> subscribers, endpoint -> its group
    owners.py        whether who sent a message may send it now, or else nobody gets it
    quota.py         how many subscriptions there are, the bytes of their filters, and their forms
    spill_buffer.py  unstored messages that were acknowledged but not sent yet
    session_rows.py  sessions as rows, and back
    stored_sessions.py  sessions as their rows say: read once, and again when they change
    cursors.py       where sessions stand, written along with every group commit
    sessions.py      every session: found, opened, over
    retained.py      the last message of each topic that has one
    ready.py         who may read on
    sent.py          the message of a flight, read again
    retries.py       whose retries are due
    burials.py       what places that end, or are set forward, leave undone
    loans.py         what members have in hand of their groups, and how it comes back
    drain.py         groups and endpoints are given nothing new, before a stop
    done.py          what is kept of deliveries that are done, and for how long
    done_counts.py   what places have done, noted for the archive
    membership.py    who is in which shared subscription
    url_groups.py    groups of full URLs: made and forgotten

then what happens:

    giving.py        what the horizon passes is given to those who are there
    alerts.py        endpoints are told of what dies or is withheld
    dispatch.py      the horizon moves
    publishing.py    publishes take their place: stored or not, answered when that is settled
    settling/        what becomes of a delivery: done, returned, again later, dead (leases: who has what)
    wills.py         what is published when a connection ends without a word
    unread.py        what a place that is behind has still to read
    beside.py        what was in flight when a connection ended, retries that are due, what waited for its key
    replay.py        sessions behind the horizon read on, in turns
    floor.py         who keeps old slices, and how such a place is moved on
    retention.py     which slices may go, and what holds them
    outcomes.py      what has become of whole messages
    deliveries.py    what has become of a message with each who was to get it, for who asks
    subscriptions.py  what clients subscribe to: added, ended; ended too when their keys may no more
    clients.py       the life of a client's session: claim, begin, resume, leave, drop

A protocol (server/mqtt, server/http, server/pull, server/webhook) calls the parts that it uses. It implements
`Link` (link.py), on which messages come back: `offer` gives them to `send`.

    clients          its session is opened, resumed, left, ended
    subscriptions    it subscribes, unsubscribes
    groups           `Membership`: a group is made, paused, disbanded; a part of the server becomes a member
    publishing       it publishes
    settling         it says what becomes of a message that it was sent
    replay           `rewind`: a session or group reads again from an earlier position

In here nobody knows reason
codes, packets or routes; close reasons, verdicts and receipts are enumerations of this room.
"""
