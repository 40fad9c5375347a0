"""Cluster: several nodes of one timeline, one of which leads; their shared log is in shards/log.

view.py          answer of /v1/cluster
members.py       members as the nodes know each other
trimming.py      what of the log may go, and its room for messages
follower.py      following the log, and the election
standby.py       what a follower keeps in RAM, to take the lead at once
opening.py       opens a node's store with its connection to the log
standing.py      what nodes tell each other when a log is to be begun, and who begins it
beginning.py     begins a new log, or a lost one anew
healing.py       the same, when a person says so
engine_side.py   a second connection to the log: its bounds, its room, and trimming
clock_judge.py   whether a step of the clock counts, and whether to lead by it
clocks.py        whose clock differs, and what a step of one's own is worth
log_clock.py     the clock of the log's server
damage.py        damage of this node's data: who could lead in its place, when it takes a copy
digests.py       digests of the keys and settings, which should be the same on all nodes
beats.py         heartbeats of a leader whose loop is busy
reports.py       reports between nodes
key.py           the cluster's key
copy_out.py      sends this node's data to another
copy_in.py       fetches another node's data
swap.py          replaces this node's data by a copy
routes.py        the cluster's calls
figures.py       the cluster's metrics
space.py         frees the space of what the leader has deleted
scrub.py         reads the tables whole, once a day
redirecting.py   listeners of a node that does not lead
node.py          the states of a node
"""
