"""`fasti.Worker`: the usual loop around `subscribe`, written once.

    worker = fasti.Worker(group="workers", concurrency=10)

    @worker.on("orders/+/remind", retry={"max_attempts": 5, "backoff": ["10s", "1m", "10m"]}, timeout=30)
    async def remind(job: fasti.Delivery) -> None:
        await mail(job.json())

    asyncio.run(worker.run())          # or: fasti work module:worker

When a handler returns, its message is acked. When it raises, or takes longer than `timeout`, the message is
nacked, and the group gets it again after the back-off; after `max_attempts` tries it becomes a dead letter.
`raise fasti.RetryIn(delay)` chooses the delay instead, `raise fasti.Reject(reason)` makes it a dead letter at
once. An `async def` runs in the loop, a plain function in a thread.

The worker is a member of the group with one connection, and takes at most `concurrency` messages, over all
its handlers; the others go to other workers. It extends the lease of each message while its handler runs. So
a job may take hours, and yet the messages of a hanging worker or a lost machine go to another after `lease`.

Each handler's filter is a group of its own, with one name. The worker creates missing ones, and they stay
until they are deleted. A retry belongs to the group's name: it goes to the handler of its filter, or else to
one whose filter matches its topic. At its start the worker logs the filters of its group that have unfinished
messages, but no handler here and no other member.

Limits: a job is done at least once. If a worker is killed between the work and the ack its job is done again,
so let handlers check whether `job.id`, or a key of yours, is done. A thread cannot be stopped: a plain
function beyond its timeout runs on beside its retry, and keeps its thread until it returns. `one_per`, which
`order=True` replaces, holds within one process: two workers may have messages of the same key.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Unpack
from weakref import WeakValueDictionary

from .answers import Group
from .client import Client
from .delivery import Delivery, answered
from .errors import BadArgument, Error, NotFound, Refused
from .handlers import Handler, Host, P, Pattern, R, Unfit
from .mqtt_values import fits
from .names import check_count
from .options import GroupOptions, NoOptions, RetryOptions, WorkerOptions
from .signatures import check, check_retry, unfolded
from .subscribe import SubscribeRequest, Subscription
from .warned import warn
from .wire import Span, seconds

Key = Callable[[Delivery], Hashable]

LEASE = timedelta(seconds=60)
GRACE_S = 30.0
_ON = frozenset(("retry", "timeout", "one_per"))
_ONE_PER = (
    "one_per holds within one process, and will go: use Worker(order=True) or"
    " Worker(per_key={'concurrency': 1}), and the ordering_key of messages"
)
_NOT_FOR_THE_LOOP = (StopIteration, KeyboardInterrupt, GeneratorExit)
"""A future does not take the first, and the others would mean the loop itself."""
_STOPPED = "the worker was stopped"
_log = logging.getLogger("fasti.worker")


class RetryIn(Exception):
    """Raised by a handler: not now, but after `delay` again (None: the back-off). It counts as a try."""

    def __init__(self, delay: Span | None, reason: str = "not now") -> None:
        """Raises BadArgument for a delay that is none."""
        super().__init__(delay, reason)  # what a copy, or a pickled one, is made from
        self.delay = None if delay is None else seconds("delay", delay)
        self.reason = str(reason)

    def __str__(self) -> str:
        return self.reason


class Reject(Exception):
    """Raised by a handler that can never do the job: a dead letter at once, with that reason."""

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)


@dataclass(slots=True)
class Figures:
    """Counts of a worker's work.

    `done` and `failed` count tries, `again` those that were not the first; `in_hand`: current messages.
    """

    done: int = 0
    failed: int = 0
    again: int = 0
    in_hand: int = 0


@dataclass(frozen=True, slots=True)
class _Job:
    """The handler of one filter."""

    handler: Handler[..., object]
    timeout_s: float | None
    one_per: Key | None
    request: SubscribeRequest
    result: bool

    async def do(self, d: Delivery, threads: asyncio.Semaphore, begin: Callable[[], None]) -> Any:
        """Call the handler; what it gives. Raises what it raises, and TimeoutError.

        A plain function first waits for a thread, which does not count. `begin` is called just before the
        handler. Raises Unfit before that.
        """
        called: Awaitable[object]
        call: Callable[[], Any] = partial(self.handler.function, *self.handler.arguments(d))
        if inspect.iscoroutinefunction(self.handler.function):
            begin()
            called = call()
        else:
            await threads.acquire()
            begin()
            called = _in_thread(call, d.topic, threads)
        async with _limited(self.timeout_s):
            result = await called
            return await result if inspect.isawaitable(result) else result


@unfolded
class Worker:
    """Handlers for the messages of a group, and the loop that calls them."""

    def __init__(
        self,
        client: Client | None = None,
        *,
        group: str = "workers",
        concurrency: int = 10,
        lease: Span = LEASE,
        grace: Span = GRACE_S,
        **terms: Unpack[WorkerOptions],
    ) -> None:
        """`client`: None: `run` makes one. `lease`: time after which other workers get the messages of a
        hanging one. `grace`: time for running handlers when it is stopped.
        """
        check(WorkerOptions.__optional_keys__, terms)
        check_count("concurrency", concurrency, 1)
        if client is not None and not hasattr(client, "messages"):  # a stand-in of a test has them
            raise BadArgument("client", f"must be a fasti.Client, not {client!r:.100}")
        self.concurrency = concurrency
        self.expiry = terms.get("expiry")
        self.figures = Figures()
        self._host = Host(client)
        self._group = group
        self._grace_s = seconds("grace", grace)
        self._terms = SubscribeRequest("#", group=group, ack_timeout=lease, **terms)
        self._jobs: list[_Job] = []
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        self._running: set[asyncio.Task[None]] = set()
        self._stop: asyncio.Event | None = None  # while it runs

    def on(
        self,
        topic_filter: str,
        *,
        retry: RetryOptions | None = None,
        timeout: Span | None = None,
        one_per: Key | None = None,
        result: bool = False,
        **others: Unpack[NoOptions],
    ) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Register the decorated function for the messages of a filter; its argument is the `Delivery`.

        A level `{order}` of the filter matches any level, as `+` does. If the first argument's annotation is
        a dataclass, a msgspec Struct or a pydantic model, the function gets the payload as one, and the
        `Delivery` as an optional second argument. Its `schedule` schedules a message for it.

        `retry`: `{"max_attempts": 5, "backoff": ["10s", "1m"]}`, each optional. `timeout`: maximum time of a
        try. `one_per`: deprecated; returns a key; this process handles messages with the same key one after
        another. `result`: what the function returns is sent as the message's result, in JSON; what JSON
        cannot say, or has more than 65,535 bytes, is an error of the handler. Raises BadArgument, also for a
        filter that has a handler already.
        """
        pattern = Pattern(topic_filter)
        if any(job.request.topic_filter == pattern.filter for job in self._jobs):
            raise BadArgument("topic_filter", f"has a handler already: {topic_filter!r}")
        check(_ON, others)
        if one_per is not None:
            warn(_ONE_PER, DeprecationWarning)
        if retry is not None:
            check_retry(retry)
        request = replace(self._terms, topic_filter=pattern.filter, **(retry or {}))
        timeout_s = None if timeout is None else seconds("timeout", timeout)

        def register(function: Callable[P, R]) -> Handler[P, R]:
            inner = function.function if isinstance(function, Handler) else function
            handler = Handler(inner, pattern, self._host)
            self._jobs.append(_Job(handler, timeout_s, one_per, request, result))
            return handler

        return register

    def stop(self) -> None:
        """Take no more messages; `run` returns when running handlers have ended, at the latest after `grace`.

        Call it in the worker's loop. It does nothing if the worker does not run.
        """
        if self._stop is not None:
            self._stop.set()

    async def run(self, client: Client | None = None, *, signals: bool = True) -> None:
        """Work until `stop()`, SIGTERM or SIGINT. `client`: where the worker was made without one.

        Raises Unreachable if the server is not there at the start (afterwards it is waited for), Refused when
        it says no, BadArgument if there is no handler.
        """
        if not self._jobs:
            raise BadArgument("worker", "has no handler; decorate one with @worker.on(filter)")
        stop = self._stop = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            client = self._host.client or client
            if client is None:
                client = await stack.enter_async_context(Client())
            stack.enter_context(self._host.running(client))
            if signals:
                stack.enter_context(self._on_signals())
            requests = [
                replace(job.request, max_in_flight=self.concurrency, expiry=self.expiry) for job in self._jobs
            ]
            await self._make_groups(client, requests)
            deliveries = await stack.enter_async_context(client._open(requests))
            _log.info("group %s: %s", self._group, self._filters)
            await self._until_stopped(deliveries, stop)

    @property
    def _filters(self) -> str:
        return ", ".join(job.request.topic_filter for job in self._jobs)

    async def _make_groups(self, client: Client, requests: list[SubscribeRequest]) -> None:
        """Create missing groups, so that they stay; SUBSCRIBE would create groups that expire like sessions.

        Existing groups are not changed. Logs filters without members.
        """
        try:
            known = {group.filter: group for group in await self._known(client)}
            for request in requests:
                if known.pop(request.topic_filter, None) is None:
                    options = {name: getattr(request, name) for name in GroupOptions.__optional_keys__}
                    await client.groups.put(self._group, request.topic_filter, **options)
        except Error as error:
            _log.warning("group %s: not created in advance, so it may expire: %s", self._group, error)
            return
        for group in known.values():
            if group.undone and not group.members:
                _log.warning(
                    "group %s: nobody receives its filter %s: %s; this worker has %s",
                    *(self._group, group.filter, group.undone, self._filters),
                )

    async def _known(self, client: Client) -> tuple[Group, ...]:
        """The groups of that name."""
        try:
            return await client.groups.get(self._group)
        except NotFound:
            return ()

    async def _until_stopped(self, deliveries: Subscription, stop: asyncio.Event) -> None:
        taking = asyncio.create_task(self._take(deliveries))
        stopped = asyncio.create_task(stop.wait())
        grace_s = self._grace_s
        try:
            await asyncio.wait({taking, stopped}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            grace_s = 0
            raise
        finally:
            for task in (taking, stopped):
                task.cancel()
            await asyncio.wait({taking, stopped})
            await self._finish(grace_s)
        if not taking.cancelled():
            taking.result()  # raises why it ended by itself

    async def _take(self, deliveries: Subscription) -> None:
        """A task for each message, until the subscription is closed."""
        slots, threads = asyncio.Semaphore(self.concurrency), asyncio.Semaphore(self.concurrency)
        while True:
            await slots.acquire()
            d = await anext(deliveries, None)
            if d is None:
                return
            task = asyncio.create_task(self._work(d, threads))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            task.add_done_callback(lambda _: slots.release())

    async def _finish(self, grace_s: float) -> None:
        """Let running handlers finish; return the messages of those that do not."""
        if not self._running:
            return
        _log.info("stopping: %d messages in progress have %g s", len(self._running), grace_s)
        _, late = await asyncio.wait(self._running, timeout=grace_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _work(self, d: Delivery, threads: asyncio.Semaphore) -> None:
        self.figures.in_hand += 1
        self.figures.again += d.attempt > 1
        holding = asyncio.create_task(_hold(d))
        begun = asyncio.Event()
        failure: RetryIn | Reject | None
        try:
            failure = await self._tried(d, threads, begun.set)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            is_ours = task is not None and task.cancelling()
            if is_ours and not begun.is_set():
                # No handler has seen it: the disconnect returns it, and that is no try.
                self.figures.in_hand -= 1
                return
            failure = RetryIn(0, _STOPPED) if is_ours else RetryIn(None, "the handler cancelled itself")
        finally:
            holding.cancel()
        if failure is None:
            is_sent = await d.ack()
            self.figures.done += 1
        else:
            why = str(failure)
            is_sent = await (d.reject(why) if isinstance(failure, Reject) else d.nack(failure.delay, why))
            self.figures.failed += 1
        self.figures.in_hand -= 1
        if not is_sent:
            _log.warning("%s %s: connection lost, it will be redelivered", d.topic, d.id, extra=_extra(d))

    async def _tried(
        self, d: Delivery, threads: asyncio.Semaphore, begin: Callable[[], None]
    ) -> RetryIn | Reject | None:
        """None: done. Else why not, and when again. `begin` is called when a handler is."""
        job = self._job_of(d)
        if job is None:
            text = "%s %s: no handler matches this topic; handlers: %s"
            _log.warning(text, d.topic, d.id, self._filters, extra=_extra(d))
            return RetryIn(None, f"no handler of the worker matches the topic {d.topic}")
        try:
            async with self._turn(job, d):
                with d.traced(job.request.topic_filter, self._group):
                    given = await job.do(d, threads, begin)
            if job.result:
                d._result = answered(given)
        except RetryIn as retry:
            when = "after its back-off" if retry.delay is None else f"in {retry.delay:g} s"
            _log.info("%s %s: retry %s: %s", d.topic, d.id, when, retry, extra=_extra(d))
            return retry
        except (Reject, Unfit) as never:
            _log.warning("%s %s: rejected: %s", d.topic, d.id, never, extra=_extra(d))
            return never if isinstance(never, Reject) else Reject(f"the payload {never}")
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            text = "%s %s: attempt %d failed: %s: %s"
            named = type(error).__name__
            _log.warning(text, d.topic, d.id, d.attempt, named, error, exc_info=error, extra=_extra(d))
            return RetryIn(None, f"{type(error).__name__}: {error}")
        _log.debug("%s %s: done", d.topic, d.id, extra=_extra(d))
        return None

    def _job_of(self, d: Delivery) -> _Job | None:
        """That of the subscription it came for, if its filter fits, else the first one whose filter does."""
        subscribed = [job for number, job in enumerate(self._jobs, 1) if number in d._incoming.numbers]
        jobs = [*subscribed, *self._jobs]
        return next((job for job in jobs if fits(job.request.topic_filter, d.topic)), None)

    @contextlib.asynccontextmanager
    async def _turn(self, job: _Job, d: Delivery) -> AsyncIterator[None]:
        """Wait for those of the same key that came before."""
        if job.one_per is None:
            yield
            return
        lock = self._locks.setdefault(job.one_per(d), asyncio.Lock())
        async with lock:
            yield

    @contextlib.contextmanager
    def _on_signals(self) -> Iterator[None]:
        """The first signal stops; a second one does what it does without us."""
        loop = asyncio.get_running_loop()
        caught: list[signal.Signals] = []

        def let_go() -> None:
            while caught:
                loop.remove_signal_handler(caught.pop())

        def stop() -> None:
            let_go()
            self.stop()

        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):  # not there, or a thread
            for each in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(each, stop)
                caught.append(each)
        try:
            yield
        finally:
            let_go()


def _extra(d: Delivery) -> Mapping[str, object]:
    """A log line's members about its message, for `extra`."""
    return {"told": {"topic": d.topic, "id": d.id, "attempt": d.attempt}}


async def _hold(d: Delivery) -> None:
    """Extend the lease at each third of it; also one that is lost, as the message may come again to us."""
    lease, is_ours = d.ack_timeout, True
    while lease is not None:
        await asyncio.sleep(lease.total_seconds() / 3)
        try:
            was_ours, is_ours = is_ours, await d.extend(lease)
        except Refused as error:
            _log.warning("%s %s: not extended: %s", d.topic, d.id, error, extra=_extra(d))
            return
        if was_ours and not is_ours:
            _log.warning("%s %s: lease lost, another worker may have it", d.topic, d.id, extra=_extra(d))


@contextlib.asynccontextmanager
async def _limited(timeout_s: float | None) -> AsyncIterator[None]:
    """Raises TimeoutError that says of what."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"not done within {timeout_s:g} s") from None
        raise


def _in_thread(call: Callable[[], object], name: str, threads: asyncio.Semaphore) -> Awaitable[object]:
    """Begin it in a thread of its own; what to wait for. Who gives up waiting leaves the thread running.

    A daemon, so that one that hangs does not keep the process. `threads`, acquired, is released at its end.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[object] = loop.create_future()
    context = contextvars.copy_context()

    def ended(_: asyncio.Future[object]) -> None:
        threads.release()
        done.exception()  # seen, also if nobody waits any more

    def work() -> None:
        tell: Callable[[], None]
        try:
            result = context.run(call)
        except BaseException as error:
            raised = RuntimeError(repr(error)) if isinstance(error, _NOT_FOR_THE_LOOP) else error
            tell = partial(done.set_exception, raised)
        else:
            tell = partial(done.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell)

    done.add_done_callback(ended)
    threading.Thread(target=work, name=f"fasti-{name}", daemon=True).start()
    return asyncio.shield(done)
