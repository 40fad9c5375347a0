"""What becomes of a delivery: it is done, returned, comes again later, or is dead. What stands lower imports
what stands higher.

    leases.py        until when members of groups may keep what they have
    dead_letters.py  kept, sent again to who gave them up, dropped
    obituaries.py    copies of dead letters at `$dead/...`
    steering.py      retries that people list, have tried at another time, bury or drop
    siblings.py      retries of a filter that nobody takes from any more
    undone.py        what was not done comes again later, or is dead
    missed.py        what sessions have not read when retention passes it, counted
    burying.py       what places leave undone: dead letters, or dropped and counted
    former.py        leases that outlive the server
    late.py          acks that come when the group has gone on
    settling.py      the verbs: ack, nack, extend, lease, received, complete, part
"""
