"""Webhooks: a door by which messages leave. It posts what delivery gives it, and says what came of it.

    signing.py     signatures, as Standard Webhooks has them
    targets.py     where a message may be posted: URLs, names, addresses
    verdicts.py    what an answer means for the message
    parcel.py      a message as it is posted: headers and body
    sender.py      one HTTP POST, with everything that bounds it
    failing.py     how the last posts of an endpoint went
    origins.py     who among the origins of full URLs may be posted to now
    registry.py    the endpoints that there are
    door.py        links of members of groups, that post what they are sent
    webhooks.py    endpoints made, changed, paused, tried; their doors kept open

What stands lower here imports what stands higher. The room knows delivery, which does not know it; the calls
that change endpoints are in server/http.
"""
