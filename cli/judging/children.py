"""The processes that judge for a command: one that dies, or fails, is replaced by the next."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Self

import attrs
import msgspec

from cli.judging.child_messages import Request
from harness.errors import HarnessError, InvariantError
from harness.scratch import no_scratch, supervised_scratch
from harness.supervisor import NoScratch, Supervised

CHILD = "cli.judging.child"  # the module that a child runs; nothing here imports it
LEAVING_S = 10.0  # of a child that nothing more is asked of, whose Spark session closes
MEMORY_MARGIN = 1.25  # a child is begun anew for a run that may use so many times the memory


@attrs.define
class Child:
    """A child, the end of the pipe on which it replies, and the one that takes further requests.
    ``sound``: it has come to the end of its request.
    """

    process: Supervised
    request: Request
    reader: int
    writer: int | None
    sound: bool = False

    def ask(self, request: Request) -> None:
        """Have it carry out another request, to which it replies as to its first."""
        if self.writer is None:
            raise InvariantError("a further request for a child that takes one alone")
        self.sound = False
        asked = msgspec.structs.replace(
            request, reply=self.request.reply, further=self.request.further
        )
        content = memoryview(msgspec.json.encode(asked) + b"\n")
        while content:
            content = content[os.write(self.writer, content) :]

    def end(self) -> None:
        """End it; one that waits for a request goes by itself, and ends its Spark session."""
        if self.writer is not None:
            os.close(self.writer)
        if self.sound and self.writer is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LEAVING_S)
        self.process.end()
        os.close(self.reader)


class Children:
    """The children of a command, one at a time. A ``lasting`` one carries out one request after
    another, until it fails at one: the next begins another.
    """

    def __init__(self, *, lasting: bool) -> None:
        self._lasting = lasting
        self._waiting: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_of_the_block: object) -> None:
        if self._waiting is not None:
            self._waiting.end()

    @contextlib.contextmanager
    def asked(self, request: Request) -> Iterator[Child]:
        """Have a child carry out ``request`` within the block, and end it unless it is ``sound``
        and lasting.
        """
        child, self._waiting = self._waiting, None
        # Its JVM and its workers keep the limit that they were started under.
        if child is not None and MEMORY_MARGIN * child.request.memory_bytes < request.memory_bytes:
            child.end()
            child = None
        try:
            if child is not None:
                try:
                    child.ask(request)
                except BrokenPipeError:  # it was ended while it waited
                    child.sound = False
                    child.end()
                    child = None
            if child is None:
                child = _begun(request, lasting=self._lasting)
            yield child
            if self._lasting and child.sound:
                self._waiting, child = child, None
        finally:
            if child is not None:
                child.end()


def _begun(request: Request, *, lasting: bool) -> Child:
    """Start a child."""
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        reader, writer = os.pipe()
        ours.callback(os.close, reader)
        # The pipe ends with its last writer, which must be the child's.
        theirs.callback(os.close, writer)
        further, asking = os.pipe() if lasting else (None, None)
        if further is not None and asking is not None:
            theirs.callback(os.close, further)
            ours.callback(os.close, asking)
        request = msgspec.structs.replace(request, reply=writer, further=further)
        try:
            process = Supervised(
                [sys.executable, "-P", "-m", CHILD, msgspec.json.encode(request).decode()],
                # The supervisor removes it with all that a killed child left there.
                supervised_scratch("judge"),
                pass_fds=(writer, *([further] if further is not None else [])),
            )
        except NoScratch as error:
            raise no_scratch(error) from error
        except OSError as error:
            raise HarnessError(f"cannot start the analysis: {error.strerror}") from error
        ours.pop_all()
    return Child(process=process, request=request, reader=reader, writer=asking)
