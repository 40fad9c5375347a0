"""Several nodes of one timeline, one of which leads; the log that they share is in shards/log.

view.py          what /v1/cluster answers
members.py       what the nodes know of each other
trail.py         which record was so many bytes ago
follower.py      how a node follows, and when it takes the lead
opening.py       a node's store with its hand on the log
engine_side.py   a second hand on the log: its bounds, and trimming
reports.py       what a node says to others and asks of them
shown.py         whether a request is another node's
copy_out.py      this node's data, for another
copy_in.py       another node's data, fetched
swap.py          and put in the place of this one's
routes.py        the calls of a cluster
figures.py       what a node says of the cluster to Prometheus
space.py         the space of what the leader has deleted, given back here too
front.py         HTTP of a node that does not lead
doors.py         where a node that does not lead is reached
node.py          its states, one after the other
"""
