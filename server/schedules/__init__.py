"""Recurring schedules, and recomputing local times with a new time zone database.

    recurring.py         writes the next occurrence when the horizon has passed the last; the calls
    starts.py            a local start, also one that the clocks skip
    retime_schedules.py  recomputes pending occurrences
    retime.py            recomputes pending messages, and then schedules; at start or on a stopped server

timeline/fires.py decides when a schedule fires; its row is in shards/schedules.py.
"""
