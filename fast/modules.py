"""Which modules are compiled: those that a message passes on its way in, to its time, out and back.

A module that is not on such a way stays source: it gains nothing, and all of the list is compiled as one
unit of C.

What cannot be compiled, or would behave otherwise, is in modules of its own
(tests/house/test_compiled.py holds this):

- msgspec Structs that are decoded: `Literal`, `Annotated` and unions become bare types, so bounds would
  be lost;
- a generator expression becomes a list: what is to be lazy is a generator function;
- `except A as error` and `except B as error` in one function: `error` has the type of the first;
- what extends a compiled class has to be compiled;
- an attribute whose name makes a word of C (`self._volatile` is `__volatile` there);
- a slice of bytes that ends before it begins is an error, not empty;
- a tuple of fixed types and a large int have no identity: they are compared by `==`, never by `is`;
- what mypy has narrowed is checked: after `self.begun = row` or `if self.begun is not None` it must not be
  None, also where a call has made it so. Who changes it says so in what it returns;
- a local is let go after its last use, and `del` is none: what has to live as long as something else is
  an attribute of it, or is used last.

`shards/rocks.py` and what stands in tests as a base class (stores, clocks, `Opening`) are source, too,
and so is what is called once for many messages: `server/rounds/app.py`, `server/core.py`, the routes."""

TOOLS = ("mypy", "setuptools")
"""What compiles, as pyproject.toml names it among what developing takes."""

MODULES = (
    "timeline.filters",
    "timeline.tail",
    "timeline.wheel",
    "timeline.horizon",
    "timeline.key_firsts",
    "timeline.key_lines",
    "timeline.key_order",
    "timeline.key_rows",
    "timeline.key_tokens",
    "timeline.key_turns",
    "timeline.structures",
    "timeline.session",
    "timeline.unwritten",
    "timeline.slices",
    "timeline.retained_queue",
    "shards.owned",
    "shards.pointers",
    "shards.commit",
    "shards.mark",
    "shards.keys",
    "shards.state",
    "shards.synced",
    "shards.dedupe",
    "shards.open_batch",
    "shards.record",
    "shards.properties",
    "shards.read",
    "shards.scan",
    "shards.waiting",
    "shards.group_commit",
    "server.engine.requests",
    "server.engine.writer",
    "server.engine.errand",
    "server.engine.loader",
    "server.net.networks",
    "server.net.outgoing",
    "server.delivery.ahead",
    "server.delivery.beside",
    "server.delivery.clients",
    "server.delivery.cursors",
    "server.delivery.dispatch",
    "server.delivery.settling.leases",
    "server.delivery.settling.settling",
    "server.delivery.giving",
    "server.delivery.link",
    "server.delivery.loans",
    "server.delivery.message",
    "server.delivery.spill_buffer",
    "server.delivery.owners",
    "server.delivery.rate_limit",
    "server.delivery.publishing",
    "server.delivery.ready",
    "server.delivery.replay",
    "server.delivery.picker",
    "server.delivery.place",
    "server.delivery.place_state",
    "server.delivery.router",
    "server.delivery.run",
    "server.delivery.sent",
    "server.delivery.sessions",
    "server.delivery.shared",
    "server.delivery.subscriber",
    "server.delivery.subscriptions",
    "server.delivery.membership",
    "server.delivery.terms",
    "server.delivery.unread",
    "server.delivery.url_groups",
    "server.delivery.write_barrier",
    "server.delivery.settling.lives",
    "server.mqtt.acks",
    "server.mqtt.link",
    "server.mqtt.backlog",
    "server.mqtt.frames",
    "server.mqtt.state",
    "server.mqtt.inbound",
    "server.mqtt.forms",
    "server.mqtt.outbox",
    "server.mqtt.peer",
    "server.codec.encode",
    "server.codec.parse",
    "server.codec.publish",
    "server.codec.wire",
    "server.codec.properties",
    "server.http.front",
    "server.http.desk",
    "server.http.usual",
    "server.http.framing",
    "server.http.heads",
    "server.http.bulk",
    "server.http.posting",
    "server.http.values.drafts",
    "server.http.values.scalars",
    "server.settings.durations",
    "server.settings.times",
    "server.net.unsent",
    "server.net.pool",
)
