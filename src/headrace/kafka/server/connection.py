"""One client connection: serves requests and sends responses in request order.

Limits are in docs/limits.md.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from time import perf_counter
from typing import Any, cast

import structlog
from structlog.contextvars import bind_contextvars

from headrace.aio.tasks import close_with, counted
from headrace.broker.admin.acl_authorizer import Grants
from headrace.broker.logins import Admitted
from headrace.kafka.apis.sasl_authenticate import take_bare
from headrace.kafka.server.authorization import may, serve
from headrace.kafka.server.channel_throttle import ChannelThrottle
from headrace.kafka.server.cleanups import Cleanups
from headrace.kafka.server.frames import Framing, Listener, NotServed, client_id_of, decode_request
from headrace.kafka.server.in_flight_requests import LARGE, PAUSE_BYTES, PAUSE_REQUESTS, PRODUCE
from headrace.kafka.server.memory_pool import SMALL_BYTES
from headrace.kafka.server.registry import APIS, SHORTCUTS, WaitsFor
from headrace.kafka.server.request_context import NUMBERS, RequestContext, VersionRange
from headrace.kafka.server.response_queue import UNWRITTEN, Answers
from headrace.kafka.server.timeout_responses import TimeoutResponses, overdue_among
from headrace.security.access.principal import ANONYMOUS

_LONGEST_SHOWN = 255
"""Characters of a client id that are kept for the list of clients."""
_log = structlog.get_logger("headrace.kafka.server")


class Connection(Framing):
    """A client of the Kafka listener."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.broker = listener.broker
        self.principal = ANONYMOUS
        self._grants: Grants | None = None
        self.listener_name = listener.name
        self.served: Mapping[int, VersionRange] = listener.served
        self.counted = listener.counted
        self.client_host = "?"
        self.local_host = "?"
        self.client_id = ""
        self.software = ""
        self.cleanups = Cleanups()
        self.number = next(NUMBERS)
        self._listener = listener
        self._waiting = self._order.waiting
        self._answers = Answers(self._order, listener.memory, listener.counted, logs_requests=listener.telling)
        self._muting = ChannelThrottle(self._order, self.broker.clock, self.resume)
        self._going_on = False  # a turn for waiting requests is scheduled
        self._unopened = False  # the first waiting request waits for a slot
        self._serving = False  # responses are written together after the requests
        self._flushing = False
        self._seen = -1  # requests counted at the last idle check
        self.requests = 0
        self.fetches = 0
        self._idle_since_ms = 0
        self._now = 0.0  # start of serving
        self._tasks: dict[asyncio.Task[None], RequestContext | None] = {}

    # Life of the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a client."""
        self.transport = cast("asyncio.Transport", transport)
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.client_host = peer[0] if isinstance(peer, tuple) else "local"
        self.local_host = own[0] if isinstance(own, tuple) else "local"
        self._take_over(Admitted(self.principal, self.broker))
        self.transport.set_write_buffer_limits(high=UNWRITTEN)
        self._listener.admit(self)
        if self._listener.telling:
            port = peer[1] if isinstance(peer, tuple) else 0
            _log.debug("connection opened", client=self.client_host, port=port, listener=self.listener_name)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop pending work and run the cleanups. Group members stay until they time out."""
        if self._listener.telling and not self._closed:
            _log.debug("connection ended by the client", client=self.client_host, reason=str(exc or "closed"))
        self._listener.forget(self)
        self._take_unread()
        self._muting.end()
        # Like Kafka, finish received requests: producers with acks=0 disconnect early. Drop them if memory is full, or
        # clients that reconnect could exhaust it.
        self._left = not (self._closed or self.login.pending or self._memory.full)
        self._closed = True
        if self._left:
            self._order.leave()
        else:
            self._drop_held()
        self._answers.drop(self.broker.reads)
        if self.cancel_tasks():
            self._listener.gone.add(self)
        self.login.end()
        self._drop_frame()
        self._memory.forget(self)
        # Last: the requests in progress have been called off.
        self.cleanups.run()
        self.resume()

    def close(self, reason: str, *, expected: bool = False) -> None:
        """Log the reason and close after complete responses."""
        self._drop_held()
        if not self._closed:
            self._closed = True
            self._flush()
            self.transport.close()
            self._listener.end_later(self)
            tell = _log.debug if expected else _log.warning
            tell("connection closed", client=self.client_host, reason=reason)

    def refuse_in(self, wait_ms: int, reason: str) -> None:
        """Stop reading, and close after a delay, to slow down reconnects (KIP-612)."""
        self._pause_reading()
        self._muting.then(wait_ms, lambda: self.close(reason, expected=True))

    def close_if_idle(self, oldest_ms: int) -> None:
        """Close if no request has arrived since `oldest_ms` (ticks)."""
        if self.requests != self._seen or self._waiting or self._holds:
            self._seen = self.requests
            self._idle_since_ms = self.broker.clock.ticks_ms()
        elif self._idle_since_ms <= oldest_ms:
            self.close("idle (connections.max.idle.ms)", expected=True)

    def abort(self, reason: str) -> None:
        """Log the reason and close without the unsent responses."""
        self._closed = True
        self._drop_held()
        _log.warning("connection closed", client=self.client_host, reason=reason)
        self.transport.abort()

    @property
    def progress(self) -> tuple[int, int] | None:
        """Return received and unsent bytes, or None if no other client waits for this one."""
        frame = self._frame
        # Requests of a throttled client occupy memory.
        sending = self._memory.short and (
            self._holds if self._order.muted else frame is not None and not self._read_paused
        )
        taking = self._answers.held > 0 and self._order.write_paused and self.broker.reads.short
        if not sending and not taking:
            return None
        return (frame.filled if frame is not None else 0), self.transport.get_write_buffer_size()

    # Bytes in

    def buffer_updated(self, nbytes: int) -> None:
        """Serve the complete frames."""
        now = self._now = perf_counter()
        lane = self.broker.lane
        if not lane.turn_began:
            lane.begin_turn(now)
        self._order.begin_slice(now, lane.turn_began)
        if self._holds:
            self._hold_read(nbytes)
            return
        if self._frame is None:
            self._serving = True
            self._take_read(nbytes)
        elif self._took(nbytes):
            self._serving = True
            self._take_frame()
        else:
            return
        self._served()

    # Requests

    def _request(self, buffer: memoryview, start: int, stop: int, *, owned: bool, in_turn: bool) -> bool:
        key = buffer[start] << 8 | buffer[start + 1] if stop - start > 1 else -1
        if self._left and key != PRODUCE:
            return True
        order = self._order
        order.quota -= 1
        if (key != PRODUCE or order.exclusive or order.quota < 0) and (
            order.must_wait_for_others(key) or order.slice_over() or not self._may_open(key, stop - start)
            if in_turn
            else order.must_wait(key, stop - start)
        ):
            return False
        return self._serve(buffer, start, stop, key, owned=owned, in_turn=in_turn)

    def _may_open(self, key: int, size: int) -> bool:
        self._unopened = key != PRODUCE and size > LARGE and not self._memory.may_open(self)
        return not self._unopened

    def _serve_held(self) -> None:
        self._going_on = False
        self._serving = True
        self._now = perf_counter()
        self._order.begin_slice(self._now, self._now)
        self._unopened = False
        try:
            self._take_held()
        except Exception:
            # The client must not wait for a response that never comes.
            self.abort("a request could not be served")
            raise
        if self._closed:
            self._answers.drop(self.broker.reads)
        self._memory.had_turn(self, waits=self._unopened)
        self._served()
        if not self._holds:
            self.resume()

    def _served(self) -> None:
        # Consumers get records before the producer gets its response.
        self.broker.wakeups.run()
        self._serving = False
        waiting = self._waiting
        if waiting and waiting[0].done:
            self._flush()
        if self._holds and not self._unopened:
            request = self._held_request
            if not self._order.must_wait_for_others(request[0] << 8 | request[1]):
                self.resume()

    def _serve(self, buffer: memoryview, start: int, stop: int, key: int, *, owned: bool, in_turn: bool) -> bool:
        if self.login.pending and not self._admit(buffer[start:stop]):
            return True
        shortcut = None if self._left else SHORTCUTS.get(key)
        context = None if shortcut is None else shortcut.begin(self, buffer, start, stop, owned)
        if context is None or (self._grants is not None and not may(context, self._grants)):
            if key == PRODUCE and self._order.must_wait_if_not_plain(stop - start):
                return False
            self._decode(buffer[start:stop], owned=owned, in_turn=in_turn)
            return True
        if self.broker.quotas.limiting:
            context.client_id = client_id_of(buffer, start)
        self._begin(context)
        try:
            context.serve()
        except Exception:
            self._failed(context)
        if context.account is not None:
            context.account.pause()
        return True

    def _decode(self, frame: memoryview, *, owned: bool, in_turn: bool) -> None:
        try:
            api, context, request = decode_request(frame, self, self._listener.served)
        except NotServed as reason:
            self.close(str(reason))
            return
        if request is None:
            self._begin(context)
            self._listener.refuse_api_versions(context)
            return
        if self._left and request.acks:
            return
        context.owned = owned
        if not self.requests:
            self.client_id = (context.client_id or "")[:_LONGEST_SHOWN]
        if api.bound is not None:
            context.late = TimeoutResponses(api, api.bound, request)
        self._begin(context)
        over = in_turn and api.one_gives_up_all and self._order.kept > 0
        if over or (api.waits_for is WaitsFor.MEMBERS and not context.may_wait()):
            context.give_up()
            return
        try:
            grants = self._grants
            later = api.handler(request, context) if grants is None else serve(api, request, context, grants)
        except Exception:
            self._failed(context)
            return
        account = context.account
        if account is not None:
            account.pause()
        if later is not None:
            close_with(self._keep(self._complete(later, context), context), later)

    def _keep(self, work: Coroutine[Any, Any, None], context: RequestContext | None = None) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = context
        task.add_done_callback(self._tasks.pop)
        return task

    def cancel_tasks(self) -> bool:
        """Cancel all tasks but those that wait for storage, and return whether any remain. Call it again for those."""
        for task, context in self._tasks.items():
            if context is None or not context.stays:
                task.cancel()
        return bool(self._tasks)

    def _failed(self, context: RequestContext) -> None:
        name = APIS[context.api_key].name
        self.close(f"{name} version {context.version} failed")
        context.done = True  # nothing is in flight
        _log.exception("request failed", api=name, version=context.version, client=self.client_host)

    def _admit(self, frame: memoryview) -> bool:
        if self.login.raw:
            # No frame may arrive before the response.
            self.login.raw = False
            self._flush()
            self._keep(take_bare(self, bytes(frame), self.transport.write))
            return False
        key = int.from_bytes(frame[:2], "big")
        if not self.login.admits(key):
            self.close(f"API key {key} before the client has logged in")
            return False
        return True

    def enter(self, admitted: Admitted, by: str) -> None:
        """See `ResponseChannel.enter`."""
        audit = admitted.broker.access.audit
        audit.admitted(str(admitted.principal), self.client_host, by, listener=self.listener_name)
        self._take_over(admitted)

    def _take_over(self, admitted: Admitted) -> None:
        self.principal, self.broker = admitted.principal, admitted.broker
        self._grants = self.broker.access.grants(self.principal, self.client_host, self.broker.cluster)
        self.login.expire_in(admitted.lifetime_ms, self.broker.clock)

    def hold_up(self, context: RequestContext) -> None:
        """See `ResponseChannel.hold_up`."""
        context.alone = True
        self._order.exclusive += 1

    @property
    def is_busy(self) -> bool:
        """See `ResponseChannel.is_busy`."""
        return self._order.kept > 0

    def _begin(self, context: RequestContext) -> None:
        self.requests += 1
        context.began = self._now
        if self.broker.quotas.limiting and not self.login.pending:
            self._muting.limit(context)
        order = self._order
        order.waiting.append(context)
        order.waiting_bytes += context.size
        self._memory.used += context.size
        key = context.api_key
        if key == PRODUCE:
            order.produces += 1
        else:
            order.exclusive += 1
            if context.size > LARGE and not self.login.pending:
                self._memory.open(context)
        if len(order.waiting) > PAUSE_REQUESTS or order.waiting_bytes > (
            SMALL_BYTES if self._memory.full else PAUSE_BYTES
        ):
            self._pause_reading()

    def park(self, context: RequestContext, more: int) -> bool:
        """See `ResponseChannel.park`."""
        self._order.waiting_bytes += more
        self._park_held()
        return self._memory.park(context, more)

    def took_long(self) -> None:
        """See `ResponseChannel.took_long`."""
        self._order.quota = 0

    def mute(self, wait_ms: int) -> None:
        """See `ResponseChannel.mute`."""
        self._muting.mute(wait_ms)

    async def _complete(self, later: Coroutine[Any, Any, Any], context: RequestContext) -> None:
        # Log lines of this request name its client.
        who = {} if self.principal is ANONYMOUS else {"user": self.principal.name}
        bind_contextvars(client=self.client_host, client_id=context.client_id, **who)
        account = context.account
        try:
            response = await (later if account is None else counted(later, account.resume, account.pause))
            if not self._closed and response is not None and not context.done:
                await context.answer_in_pieces(response)
        except Exception:
            self._failed(context)
        finally:
            self.ended(context)

    def answer_overdue(self, now_ms: int) -> Iterator[None]:
        """Send timeouts to overdue requests, one per step. Their work continues."""
        for context in overdue_among(self._waiting, now_ms):
            yield
            if context.done or self._closed:
                continue
            self._order.keep(context)
            try:
                context.give_up()
            except Exception:
                self._failed(context)
        if self._order.kept > PAUSE_REQUESTS:
            self._pause_reading()

    def ended(self, context: RequestContext) -> None:
        """See `ResponseChannel.ended`."""
        freed = self._order.let_go(context)
        if freed:
            self._memory.free(freed)
            held, context.held = context.held, 0
            self.broker.reads.release(held)
            if context.alone:
                # The client has left, so there is no response.
                self._order.exclusive -= 1
            self.resume()

    # Answers out

    def finished(self, context: RequestContext) -> None:
        """See `ResponseChannel.finished`. Responses leave after the current requests or this loop turn."""
        key = context.api_key
        order = self._order
        if key == PRODUCE:
            order.produces -= 1
        else:
            order.exclusive -= 1
            self._memory.settle(context)
            self._memory.unpark(context)
        if context.alone:
            context.alone = False
            order.exclusive -= 1
        order.due_bytes += context.answered
        if self._holds and not order.exclusive:
            self.resume()
        if self._serving or self._flushing:
            return
        if self._waiting and self._waiting[0].done:
            if key != PRODUCE and APIS[key].waits_for is WaitsFor.RECORDS:
                self._flush()
                return
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self.transport.is_closing():
            return
        if not self._answers.leave(self.transport, self.broker.reads):
            self.abort("many answers not taken while the memory for answers is used up")
        if self._read_paused:
            self.resume()

    def resume(self) -> None:
        """Serve waiting requests in turn, or else continue reading."""
        order = self._order
        if self._holds:
            if not self._going_on and (self._left or not self._closed):
                self._going_on = True
                self.broker.lane.later(self._serve_held)
        elif self._read_paused and not (self._closed or order.write_paused) and order.may_read:
            much = order.waiting_bytes > SMALL_BYTES and self._memory.full
            if much if self._frame is None else self._frame.starved:
                self._memory.wait(self)
                return
            self._read_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Stop reading until the client reads its responses."""
        self._order.write_paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        """Continue after the client has read its responses."""
        self._order.write_paused = False
        self._answers.taken(self.broker.reads)
        self.resume()
