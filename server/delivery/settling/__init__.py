"""Settling of deliveries: done, returned, retried later, or dead. Lower files import higher ones.

leases.py             leases of group members, and their lapse
holds.py              heads of keys, and keys that a dead letter or somebody holds
dead_letter_queue.py  dead letters: how many are kept, for how long, and their copies at `$dead/...`
ends.py               how a delivery has ended, noted for the archive
lives.py              what happens to a delivery, and the table of its life applied, in the writer
events.py             what happens to what is out, or is acked late, on its way to the writer
kept.py               retries and dead letters for people: listed, tried again, buried, requeued, dropped
siblings.py           retries of a filter without members, moved to a group of the same name
burying.py            unfinished messages of ended places: dead letters, or dropped and counted
releasing.py          what was withheld goes out when its senders may send it again, or is given up
settling.py           the verbs: ack, nack, extend, lease, release, follow, and the end of a connection
"""
