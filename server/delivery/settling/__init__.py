"""Settling of deliveries: done, returned, retried later, or dead. Lower files import higher ones.

leases.py        leases of group members, and their lapse
holds.py         keys that a dead letter or somebody holds
dead_letters.py  dead letters: kept, requeued, dropped
obituaries.py    copies of dead letters at `$dead/...`
steering.py      retries by users: list, try at another time, bury, drop
siblings.py      retries of a filter without members, moved to a group of the same name
undone.py        failed deliveries: retries and dead letters
missed.py        counts messages that sessions have not read when retention passes them
burying.py       unfinished messages of ended places: dead letters, or dropped and counted
former.py        leases from before a restart
late.py          late acks
settling.py      the verbs: ack, nack, extend, lease, received, complete, part
followed.py      acks with follow-ups: both in one batch
"""
