"""One SSH session to one machine: argument vectors in, bounded output back.

paramiko has no useful default for any of its waits, so every one is given here: connecting, the
banner, authentication, opening a channel, each read, and the exit status. On the machine a command
runs under ``timeout``, so that a command that the controller gave up ends there too.
"""

from __future__ import annotations

import base64
import io
import logging
import shlex
import socket
import threading
import time
from collections.abc import Sequence

import attrs
import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from harness.errors import DeadlineExceeded, HarnessError

STEP_LIMIT_S = 5.0  # one step of connecting: TCP, banner, authentication, channel
RETRY_S = 0.05  # sshd of a fresh container listens after about 0.1 s
KEEPALIVE_S = 5  # well below the idle limits of firewalls and address translation
KILL_AFTER_S = 2  # between the TERM and the KILL of `timeout`
GRACE_S = 4.0  # the controller waits longer than `timeout`, so that its answer gets through
OUTPUT_LIMIT_BYTES = 1 << 20
READ_BYTES = 1 << 15
TIMED_OUT = (124, 137)  # exit statuses of `timeout`: after its TERM, after its KILL

# Its threads write tracebacks of what reaches the caller as an error of ours anyway.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


class RemoteError(HarnessError):
    """A command on a machine failed."""

    def __init__(self, node: str, command: str, status: int, stderr: str) -> None:
        said = stderr.strip()[-500:] or "nothing"
        super().__init__(f"{node}: {command} exited with {status} and said: {said}")
        self.node, self.status = node, status


class Unreachable(HarnessError):
    """No SSH session to a machine could be opened."""

    def __init__(self, node: str, host: str, reason: str) -> None:
        super().__init__(f"{node}: no SSH session to {host}: {reason}")
        self.node = node


@attrs.frozen(kw_only=True)
class Endpoint:
    """Where sshd listens, the user and the key to log in with, and the one host key that is
    accepted. ``source`` as in ``harness.protocols.cluster.Address``.
    """

    host: str
    user: str
    key: Key
    host_key_line: str
    port: int = 22
    source: str = ""


class RunningCommand:
    """A command in progress on a machine; every method blocks up to ``limit_s`` of its start."""

    def __init__(self, node: str, name: str, channel: paramiko.Channel, limit_s: float) -> None:
        self._node, self._name, self._channel, self._limit_s = node, name, channel, limit_s
        # One limit over all waits: a command that trickles output can't stretch it.
        self._ends = time.monotonic() + limit_s
        self._unread = b""

    def _arm(self) -> None:
        """Give the channel's next wait the rest of the time."""
        left_s = self._ends - time.monotonic()
        if left_s <= 0:
            self._give_up()
        self._channel.settimeout(left_s)

    def _give_up(self) -> None:
        self._channel.close()
        raise DeadlineExceeded(f"{self._node}: {self._name}", self._limit_s)

    def _receive(self) -> bytes:
        self._arm()
        try:
            return self._channel.recv(READ_BYTES)
        except TimeoutError:
            self._give_up()
            raise

    def send(self, data: bytes) -> None:
        """Write ``data`` to its standard input."""
        self._arm()
        try:
            self._channel.sendall(data)
        except TimeoutError:
            self._give_up()
        except OSError as error:
            # It ended before reading everything; its exit status says more than a broken pipe.
            if not self._channel.exit_status_ready():
                raise Unreachable(self._node, "the machine", f"session lost: {error}") from error

    def line(self) -> str:
        """The next line of its output, without the newline; empty at the end of the output."""
        while b"\n" not in self._unread:
            received = self._receive()
            if not received:
                break
            self._unread += received
            # Per line, too: a program that never ends its line would fill our memory.
            self._check_size(len(self._unread), OUTPUT_LIMIT_BYTES)
        first, _, self._unread = self._unread.partition(b"\n")
        return first.decode("utf-8", "replace")

    def _check_size(self, size: int, limit: int) -> None:
        if size > limit:
            self._channel.close()
            raise HarnessError(
                f"{self._node}: {self._name} wrote more than {limit} bytes (the limit)"
            )

    def finish(self, output_limit_bytes: int = OUTPUT_LIMIT_BYTES) -> bytes:
        """End its input and return the rest of its output. Raises ``RemoteError`` on failure."""
        # Many commands read their input to its end before they answer.
        self._channel.shutdown_write()
        parts = [self._unread]
        size = len(self._unread)
        while received := self._receive():
            parts.append(received)
            size += len(received)
            self._check_size(size, output_limit_bytes)
        self._arm()
        # paramiko's own wait for the status has no limit.
        if not self._channel.status_event.wait(self._ends - time.monotonic()):
            self._give_up()
        status = self._channel.exit_status
        # stderr beyond the channel's window stalls the command until `timeout` ends it.
        stderr = self._channel.recv_stderr(READ_BYTES).decode("utf-8", "replace")
        self._channel.close()
        if status in TIMED_OUT:
            raise DeadlineExceeded(f"{self._node}: {self._name}", self._limit_s)
        if status != 0:
            raise RemoteError(self._node, self._name, status, stderr)
        return b"".join(parts)


class AttachedCommand:
    """A command without a limit of its own, for as long as it reads its input. Nothing here waits
    but ``line``.
    """

    def __init__(self, node: str, channel: paramiko.Channel) -> None:
        self._node, self._channel = node, channel
        self._unread = b""

    def send(self, data: bytes) -> bool:
        """Write ``data``, a few bytes, to its standard input; whether it may still hear it."""
        # One that is closed would raise, one whose command ended might take the bytes all the same.
        if self._channel.closed or self._channel.exit_status_ready():
            return False
        try:
            self._channel.settimeout(STEP_LIMIT_S)
            self._channel.sendall(data)
        except (OSError, EOFError, paramiko.SSHException):
            return False
        return True

    def line(self, limit_s: float) -> str:
        """The next line of its output, empty where there is none in time."""
        ends = time.monotonic() + limit_s
        while b"\n" not in self._unread and (left_s := ends - time.monotonic()) > 0:
            self._channel.settimeout(left_s)
            try:
                received = self._channel.recv(READ_BYTES)
            except TimeoutError:
                break
            if not received:
                break
            # Bounded: what comes without a reader must not fill our memory.
            self._unread = (self._unread + received)[-OUTPUT_LIMIT_BYTES:]
        first, _, self._unread = self._unread.partition(b"\n")
        return first.decode("utf-8", "replace")

    def said(self) -> tuple[str, ...]:
        """The whole lines of output that are here by now."""
        while self._channel.recv_ready():
            received = self._channel.recv(READ_BYTES)
            if not received:
                break
            self._unread = (self._unread + received)[-OUTPUT_LIMIT_BYTES:]
        *lines, self._unread = self._unread.split(b"\n")
        return tuple(line.decode("utf-8", "replace") for line in lines)


class Session:
    """The session to one machine; connects by itself when it is needed. Safe between threads."""

    def __init__(self, node: str, endpoint: Endpoint) -> None:
        self.node = node
        self._endpoint = endpoint
        self._client: paramiko.SSHClient | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()

    def connect(self, limit_s: float) -> None:
        """Open the session, trying until ``limit_s`` while sshd comes up. Raises
        ``Unreachable``."""
        self._connected(time.monotonic() + limit_s)

    def _connected(self, ends: float) -> paramiko.SSHClient:
        # One call dials, and the others use the session that it opens.
        if not self._lock.acquire(timeout=max(0.0, ends - time.monotonic())):
            raise Unreachable(self.node, self._endpoint.host, "another call is still connecting")
        try:
            if self._client is not None:
                transport = self._client.get_transport()
                if transport is not None and transport.is_active():
                    return self._client
                self._client.close()
            self._client = self._dial(ends)
            return self._client
        finally:
            self._lock.release()

    def _dial(self, ends: float) -> paramiko.SSHClient:
        while True:
            try:
                # Never 0 or less, which is no timeout.
                return self._dial_once(min(STEP_LIMIT_S, max(RETRY_S, ends - time.monotonic())))
            # Final: a machine with another key is another machine, and may not get our commands.
            except paramiko.BadHostKeyException as error:
                raise self._unreachable(error) from error
            except (OSError, EOFError, paramiko.SSHException) as error:
                # Refused credentials stay refused; everything else may be an sshd that comes up.
                if self._over.is_set() or _refused(error) or time.monotonic() + RETRY_S >= ends:
                    raise self._unreachable(error) from error
            self._over.wait(RETRY_S)

    def _dial_once(self, step_s: float) -> paramiko.SSHClient:
        end = self._endpoint
        kind, encoded = end.host_key_line.split()[:2]
        host_key = paramiko.PKey.from_type_string(kind, _decode(encoded))
        client = paramiko.SSHClient()
        # The controller made the host keys itself: an unknown one is never to be trusted.
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        # The library looks a key up as ``known_hosts`` writes it, with any port but 22.
        known_as = end.host if end.port == 22 else f"[{end.host}]:{end.port}"
        client.get_host_keys().add(known_as, kind, host_key)
        way = None
        try:
            if end.source:
                # From the network's own address: see ``Address.source``.
                way = socket.create_connection((end.host, end.port), step_s, (end.source, 0))
            client.connect(
                end.host,
                port=end.port,
                sock=way,
                username=end.user,
                pkey=end.key.pair,
                timeout=step_s,
                banner_timeout=step_s,
                auth_timeout=step_s,
                channel_timeout=step_s,
                # Else, after a refusal, the user's own keys would be offered to the machine.
                look_for_keys=False,
                allow_agent=False,
            )
        except BaseException:
            client.close()
            if way is not None:
                way.close()
            raise
        transport = client.get_transport()
        if transport is not None:
            # Else a session to a machine that vanished would look alive for hours.
            transport.set_keepalive(KEEPALIVE_S)
        return client

    def open(self, argv: Sequence[str], *, limit_s: float, name: str = "") -> RunningCommand:
        """Start ``argv``; it ends by itself after ``limit_s``. ``name`` stands for it in errors."""
        # On the machine as well: a lost session would leave the command running.
        command = shlex.join(["timeout", f"--kill-after={KILL_AFTER_S}", f"{limit_s:g}", *argv])
        channel = self._channel(time.monotonic() + limit_s + GRACE_S)
        try:
            channel.settimeout(STEP_LIMIT_S)
            channel.exec_command(command)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._unreachable(error) from error
        return RunningCommand(self.node, name or argv[0], channel, limit_s + GRACE_S)

    def attach(self, argv: Sequence[str], limit_s: float) -> AttachedCommand:
        """Start ``argv`` within ``limit_s``; it ends by itself, or when its input tells it to.
        Raises ``Unreachable``.
        """
        channel = self._channel(time.monotonic() + limit_s)
        try:
            channel.settimeout(STEP_LIMIT_S)
            channel.exec_command(shlex.join(argv))
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._unreachable(error) from error
        return AttachedCommand(self.node, channel)

    def _channel(self, ends: float) -> paramiko.Channel:
        """A new channel. A session that gives none is dead: dialled anew once, as nothing was sent
        yet.
        """
        try:
            return self._new_channel(ends)
        except (OSError, EOFError, paramiko.SSHException):
            self.drop()
        try:
            return self._new_channel(ends)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._unreachable(error) from error

    def _new_channel(self, ends: float) -> paramiko.Channel:
        transport = self._connected(ends).get_transport()
        if transport is None:
            raise paramiko.SSHException("the session was closed")
        return transport.open_session(timeout=STEP_LIMIT_S)

    def _unreachable(self, error: BaseException) -> Unreachable:
        return Unreachable(self.node, self._endpoint.host, str(error) or type(error).__name__)

    def run(
        self,
        argv: Sequence[str],
        *,
        limit_s: float,
        name: str = "",
        stdin: bytes = b"",
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> bytes:
        """Run ``argv`` with ``stdin`` and return its standard output.

        Raises ``RemoteError`` on a non-zero exit, ``DeadlineExceeded``, ``Unreachable``, and
        ``HarnessError`` past the output limit.
        """
        running = self.open(argv, limit_s=limit_s, name=name)
        if stdin:
            running.send(stdin)
        return running.finish(output_limit_bytes)

    def close(self) -> None:
        """Drop the session for good: calls that are still trying to connect give up."""
        self._over.set()
        self.drop()

    def drop(self) -> None:
        """Drop the session. Never waits for the machine; the next call connects anew."""
        # Not under the lock, which a dial that hangs holds for its whole limit.
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _refused(error: BaseException) -> bool:
    """Whether another try would end the same way: the key was looked at, and is not let in. The
    library has one type for that and for an sshd that is slow, and tells them apart in its text.
    """
    known = isinstance(error, paramiko.AuthenticationException)
    return known and "timeout" not in str(error).lower()


def _decode(encoded: str) -> bytes:
    return base64.b64decode(encoded, validate=True)


@attrs.frozen
class Key:
    """A key pair. Its text never shows in a ``repr``, so that it can't reach a log."""

    private_text: str = attrs.field(repr=False)

    @property
    def pair(self) -> paramiko.Ed25519Key:
        """The pair as paramiko uses it."""
        return paramiko.Ed25519Key.from_private_key(io.StringIO(self.private_text))

    @property
    def public_line(self) -> str:
        """The public half as a line of ``authorized_keys``."""
        return f"{self.pair.get_name()} {self.pair.get_base64()}\n"


def generate_key() -> Key:
    """A new key, without a passphrase."""
    made = Ed25519PrivateKey.generate()
    text = made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return Key(text.decode("ascii"))
