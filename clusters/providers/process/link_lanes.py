"""The traffic between two nodes as bytes in the controller: carried, held back, delayed.

A *lane* is the state of one directed link, shared by every connection between the two nodes in
whichever direction it was dialed. A *pipe* is one direction of one connection; a *splice* joins two
sockets by two pipes.

A cut looks to both ends as if packets vanished: nothing more is read from the sender (its kernel
buffers fill up, as they would while TCP retransmits), nothing is reset, and ends of streams and
resets vanish like bytes. When the cut ends, the held bytes flow on, in order and without a gap: TCP
would retransmit them too. TCP would wait up to its back-off for that; here they flow at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import cast

# Bytes held per pipe while delayed, beyond which the sender is no longer read: about
# what a kernel would buffer for a connection.
HELD_LIMIT_BYTES = 4 << 20
# SO_LINGER on, with 0 seconds: closing drops what is unsent and sends a reset.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class End(enum.Enum):
    """How a stream ends. It travels through a pipe behind the bytes."""

    FINISHED = "finished"
    RESET = "reset"


class Lane:
    """One directed link: open or cut, with a delay."""

    def __init__(self) -> None:
        self.cut = False
        self.delay_s = 0.0
        self._told: dict[Callable[[], None], None] = {}

    @property
    def plain(self) -> bool:
        """Whether bytes pass as if the lane was not there."""
        return not self.cut and self.delay_s == 0

    def tell(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after every change."""
        self._told[callback] = None

    def untell(self, callback: Callable[[], None]) -> None:
        """No longer."""
        self._told.pop(callback, None)

    def change(self, *, cut: bool) -> None:
        """Cut or mend the lane."""
        if cut != self.cut:
            self.cut = cut
            self._tell()

    def delay(self, delay_s: float) -> None:
        """Delay bytes that are sent from now on."""
        if delay_s != self.delay_s:
            self.delay_s = delay_s
            self._tell()

    def _tell(self) -> None:
        # A callback may close its pipe, which takes it out of the mapping.
        for callback in tuple(self._told):
            callback()


class Pipe:
    """Bytes from ``source`` to ``sink`` under a lane, then an end. Never raises, never blocks."""

    def __init__(self, lane: Lane, source: Side, sink: Side, ended: Callable[[End], None]) -> None:
        self._lane, self._source, self._sink, self._ended = lane, source, sink, ended
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, bytes | End]] = deque()
        self._held_bytes = 0
        self._blocked = False  # the sink's kernel buffer is full
        self._nowhere = False  # the sink is gone
        self._timer: asyncio.TimerHandle | None = None
        lane.tell(self.pump)

    def carry(self, data: bytes) -> None:
        """Take ``data`` from the source."""
        # Most bytes pass an open lane: no queue, no timer, no copy for them.
        if self._lane.plain and not self._queue and self._sink.transport and not self._nowhere:
            self._sink.transport.write(data)
            return
        self._put(data)
        self._held_bytes += len(data)
        self.pump()

    def finish(self, end: End) -> None:
        """Nothing comes after the bytes carried so far."""
        self._put(end)
        self.pump()

    def block(self, blocked: bool) -> None:
        """Whether the sink can't take more now."""
        self._blocked = blocked
        self.pump()

    def lose_sink(self) -> None:
        """The sink is gone; bytes that the source sends vanish until it learns of that."""
        # Not closed: a network that lost the receiver still takes what the sender sends.
        self._nowhere = True
        self._queue.clear()
        self._held_bytes = 0
        self.pump()

    def close(self) -> None:
        """Forget everything."""
        self._lane.untell(self.pump)
        self._queue.clear()
        if self._timer:
            self._timer.cancel()

    def pump(self) -> None:
        """Send the bytes that are due and may pass."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        while self._queue and self._sink.transport and not (self._lane.cut or self._blocked):
            due_s, item = self._queue[0]
            if due_s > self._loop.time():
                self._timer = self._loop.call_at(due_s, self.pump)
                break
            self._queue.popleft()
            if isinstance(item, End):
                self._ended(item)
            else:
                self._held_bytes -= len(item)
                if not self._nowhere:
                    self._sink.transport.write(item)
        self._source.read(
            bool(self._sink.transport)
            and not (self._lane.cut or self._blocked or self._nowhere)
            and self._held_bytes < HELD_LIMIT_BYTES
        )

    def _put(self, item: bytes | End) -> None:
        # In the order of arrival, even if the delay shrinks: bytes never overtake each other.
        self._queue.append((self._loop.time() + self._lane.delay_s, item))


class Side(asyncio.Protocol):
    """One socket of a splice. ``inlet`` takes the bytes that it sends, ``outlet`` feeds it."""

    inlet: Pipe
    outlet: Pipe

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._reading = True
        self._eof = False
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there: the bytes that waited for it may flow, in both directions."""
        self.transport = cast(asyncio.Transport, transport)
        # Behind the transport's own start of reading and ahead of the first bytes: a pause before
        # that start would be forgotten by Python 3.11.2 (Debian 12), and a cut hold no sender.
        asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self.inlet.pump()
        self.outlet.pump()

    def data_received(self, data: bytes) -> None:
        """Hand on."""
        self.inlet.carry(data)

    def eof_received(self) -> bool:
        """The other direction goes on."""
        self._eof = True
        self.inlet.finish(End.FINISHED)
        # True keeps the transport open: a half-closed connection still carries the answer.
        return True

    def pause_writing(self) -> None:
        """The peer is slow."""
        self.outlet.block(True)

    def resume_writing(self) -> None:
        """The peer caught up."""
        self.outlet.block(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer reset the connection, unless this side closed it."""
        if not self._over:
            self._over = True
            self.inlet.finish(End.RESET)
            self.outlet.lose_sink()

    def read(self, wanted: bool) -> None:
        """Read from the socket, or leave the sent bytes in the kernel."""
        # After an end of stream there is nothing to read, and resuming would find it once more.
        if self.transport is None or self._over or self._eof or wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def close(self, *, reset: bool) -> None:
        """Close the socket: politely, or so that the peer sees a reset."""
        self._over = True
        if self.transport is None:
            return
        if reset:
            reset_on_close(self.transport.get_extra_info("socket"))
            self.transport.abort()
        else:
            self.transport.close()


class Splice:
    """Two sockets joined under two lanes: ``there`` from left to right, ``back`` from right to
    left.
    """

    def __init__(self, there: Lane, back: Lane, done: Callable[[Splice], None]) -> None:
        """``done`` is called once, when both directions ended or one side was reset."""
        self.left, self.right, self._done = Side(), Side(), done
        self._pipes = (
            Pipe(there, self.left, self.right, lambda end: self._end(self.right, end)),
            Pipe(back, self.right, self.left, lambda end: self._end(self.left, end)),
        )
        self.left.inlet = self.right.outlet = self._pipes[0]
        self.right.inlet = self.left.outlet = self._pipes[1]
        self._finished = 0
        self._closed = False

    def _end(self, sink: Side, end: End) -> None:
        """An end came through to ``sink``."""
        if end is End.FINISHED and sink.transport:
            self._finished += 1
            # The peer may be gone already; then its reset comes by ``connection_lost``.
            with contextlib.suppress(OSError):
                sink.transport.write_eof()
        if end is End.RESET or self._finished == len(self._pipes):
            self.close(reset=end is End.RESET)

    def close(self, *, reset: bool = True) -> None:
        """Close both sockets. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for pipe in self._pipes:
            pipe.close()
        self.left.close(reset=reset)
        self.right.close(reset=reset)
        self._done(self)


def reset_on_close(sock: socket.socket) -> None:
    """Let the peer see a reset, not an orderly end, when ``sock`` is closed."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
