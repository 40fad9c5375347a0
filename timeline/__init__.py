"""Floor 1: what a calendar of messages is, as pure values and functions. No clock, file, socket or chance.

Where messages stand
    position.py     (at, seq), the total order of the timeline, and the id that users hold
    slices.py       slices, shards, and the directory that knows them all
    cells.py        the messages of a slice by minutes
    structures.py   topic structures, learned: which messages of a busy slice are kept together

Who may have how much
    shares.py       a share of a bound that all owners have together

What is due
    horizon.py      the dispatch cursor: what "now" is, where a new message goes, how far dispatch may move
    wheel.py        the near future in RAM: a hierarchical timing wheel
    tail.py         what was dispatched last, shared by sessions that are nearly caught up

Who reads it
    session.py      a read position, subscriptions, and what is in flight
    delivery_rows.py  a delivery: one message at one place, its row, events and what follows
    deliveries.py   the life of a delivery: one table of states and events
    key_rows.py     keys within a group: their rule, stored rows, and the bound on these
    key_order.py    order by key within a group: what is behind its key, and what is free
    key_firsts.py   a key in RAM, and the lowest position at which one is behind
    key_tokens.py   the rate of each key
    key_turns.py    whose turn it is: the reader's, or that of the keys that are behind
    key_lines.py    due retries that stand in line before their keys
    unwritten.py    key rows and index rows that are not stored yet
    finished.py     positions ahead of a session's read position that it passes over
    retained_queue.py  subscriptions that must still be sent retained messages
    filters.py      MQTT topic filters: check, match, trie

What comes again
    cron.py         cron expressions on local times
    recurrence.py   recurrence rules (RFC 5545): their text
    series.py       their local times
    sent.py         which fires were sent, as few ranges: for a clock that was ahead
    fires.py        local times made into instants: zones, jitter, misfires
"""
