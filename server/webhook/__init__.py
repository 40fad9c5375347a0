"""Webhooks: posts messages from delivery to URLs, and reports the outcome.

    signing.py     signatures by Standard Webhooks
    targets.py     allowed targets: URLs, names, addresses
    verdicts.py    outcome of a post for the message
    registry.py    endpoints by name
    request.py     webhook request: headers and body of a posted message
    sender.py      one HTTP POST, with all its bounds
    last_posts.py  answers to an endpoint's last posts
    slots.py       admission of posts to full URLs
    poster.py      members of groups that post messages to endpoints
    webhooks.py    endpoints created, changed, paused, tested; their posters

Lower files import higher ones. The room imports delivery, never the reverse; the calls that change endpoints
are in server/http.
"""
