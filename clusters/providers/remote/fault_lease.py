"""The lease of the faults on a machine, and the watchdog on it that lets the lease run out.

Rules, delays and stopped programs outlive the controller that made them. So a small process, the
watchdog, runs on each machine from the first session on, and the controller renews the lease every
two seconds. Without a renewal for the length of the lease the watchdog ends every fault in force;
without one for longer still it ends the machine, so that the rest uses nothing and a pruning of the
daemon takes it.

The lease is counted in turns of the watchdog, of which one counts two seconds at most: a machine
that was frozen, or that starved, wakes up with the lease that it had.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from clusters.providers.remote.packet_rules import CHAIN
from clusters.providers.remote.ssh_session import AttachedCommand, Session
from harness.errors import HarnessError

RENEW_S = 2.0
# A controller that starves for ten seconds must not end its own faults, and a fault without a
# controller must be gone within thirty: on a crowded machine the commands that end it take ten.
LEASE_S = 13.0
END_S = 300.0  # since the last renewal: then the machine itself ends
TURN_S = 1.0
TURN_MAX_S = 2.0  # what a turn counts, however long it took: a crowded machine doubles it
OPEN_LIMIT_S = 10.0
ASK_LIMIT_S = 3 * OPEN_LIMIT_S  # asked twice, one opened in between
LAPSES_MAX = 20  # sentences that are kept of one machine
PLACE = "/run/firedrill"
LEASE_HELD = f"{PLACE}/lease-held"
"""A file on the machine that is gone once the lease is over: guards of faults that the watchdog
does not know look at it. A full disk, which may be such a fault, lets it be removed, but not made.
"""

# The newest watchdog is the one whose number stands in the file: one whose
# session was lost is followed by another, and must not count down to its end. What it ended stands
# in a file as well, which has its room from the first on, so that the next one can tell a
# controller that was only late: each lapse with a number of its own, since a line may be lost with
# its session, or come twice.
_WATCH = """
import os, select, signal, subprocess, sys, time
lease, end, turn, turn_max = map(float, sys.argv[1:5])
chain, place = sys.argv[5:7]
mine, ended, held = place + "/watchdog", place + "/lapsed", place + "/lease-held"
room = 4096
unwritten = []  # lapses, while no file can be written
told = set()  # of this session
os.makedirs(place, exist_ok=True)
os.setsid() if os.getpgrp() != os.getpid() else None
with open(mine + ".new", "w") as file:
    file.write(str(os.getpid()))
os.replace(mine + ".new", mine)
try:
    with open(ended, "x") as file:
        file.write(" " * room)
except OSError:
    pass

# Its reader may be gone, and the machine's disk full: neither may end the watchdog.
def report(*words):
    try:
        print(*words, flush=True)
    except OSError:
        pass

def run(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    return done.stdout if done.returncode == 0 else ""

def end_rules():
    cut = "DROP" in run("iptables", "-w", "5", "-S", chain)
    run("iptables", "-w", "5", "-F", chain)
    while run("iptables", "-w", "5", "-v", "-D", "INPUT", "-j", chain):
        pass
    return cut

def end_delays():
    slow = [d for d in os.listdir("/sys/class/net")
            if "qdisc htb 1: root" in run("tc", "qdisc", "show", "dev", d)]
    for device in slow:
        run("tc", "qdisc", "del", "dev", device, "root")
    return bool(slow)

def end_pauses():
    stopped = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open("/proc/" + entry + "/stat", errors="replace") as stat:
                    if stat.read().rpartition(")")[2].split()[0] == "T":
                        stopped.append(int(entry))
            except OSError:
                pass
    for pid in stopped:
        try:
            os.kill(pid, signal.SIGCONT)
        except OSError:
            pass
    return bool(stopped)

# Guards of faults that are not known here look at it.
def mark(is_held):
    try:
        if not is_held:
            os.remove(held)
        elif not os.path.exists(held):
            open(held, "w").close()
    except OSError:
        pass

def end_faults():
    mark(False)
    # The quickest first.
    kinds = {"stopped programs": end_pauses, "cuts and losses": end_rules, "delays": end_delays}
    gone = []
    for kind, act in kinds.items():
        try:
            if act():
                gone.append(kind)
        except Exception:  # the next turn tries again
            pass
    if gone:
        unwritten.append(str(time.monotonic_ns()) + " " + ", ".join(gone))
    write_down()

def write_down():
    try:
        if unwritten:
            with open(ended, "r+") as file:
                lines = file.read().split("\\n")[:-1] + unwritten
                file.seek(0)
                file.write("\\n".join(lines) + "\\n")
            unwritten.clear()
    except OSError:
        pass

def tell():
    try:
        with open(ended) as file:
            lines = file.read().split("\\n")[:-1]
    except OSError:
        lines = []
    for line in lines + unwritten:
        if line not in told:
            told.add(line)
            report(line)

def mine_still():
    try:
        with open(mine) as file:
            return file.read() == str(os.getpid())
    except OSError:
        return True

mark(True)
report("watching")
tell()
gone, seen, hears = 0.0, time.monotonic(), True
while True:
    ready = select.select([0] if hears else [], [], [], turn)[0]
    if not mine_still():
        write_down()
        break
    last, seen = seen, time.monotonic()
    gone += min(seen - last, turn_max)
    if ready:
        said = os.read(0, 4096)
        hears = bool(said)
        if b"q" in said:
            break
        if said:
            gone = 0.0
            mark(True)
            tell()
        if b"?" in said:
            report("answered")
    else:
        if gone >= lease:  # each turn: on a crowded machine a command may fail, or come too late
            end_faults()
        if gone >= end:
            os.kill(1, signal.SIGTERM)
"""
_ANSWERED = "answered"


class Lease:
    """The lease of one machine's faults, renewed on a thread of its own: a machine that does not
    answer delays no other's. Its methods may be called from any thread.
    """

    def __init__(self, session: Session, reachable: Callable[[], bool]) -> None:
        """``reachable``: whether a command can reach the machine now; no other is dialled."""
        self._session, self._reachable = session, reachable
        self._opening = threading.Lock()
        self._watchdog: AttachedCommand | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._lapses: dict[str, str] = {}  # by their number on the machine

    def take(self) -> None:
        """Return once a watchdog stands on the machine: a new one, where there is one already.
        From then on the lease is renewed. Blocking. Raises ``HarnessError``.
        """
        with self._opening:
            self._open()
            if self._thread is None:
                name = f"lease-{self._session.node}"
                # A daemon thread: a controller that ends without ``let_go`` must not hang on it.
                self._thread = threading.Thread(target=self._renew_on, name=name, daemon=True)
                self._thread.start()

    def lapses(self) -> tuple[str, ...]:
        """The faults that the watchdog ended while this controller lived, a sentence each, up to
        now: the watchdog is asked. Of a machine that can't be reached, those that are known.
        Blocking, up to ``ASK_LIMIT_S``. Raises ``HarnessError`` where it does not answer.
        """
        with self._opening:
            if self._reachable() and not self._over.is_set():
                self._ask()
            return tuple(self._lapses.values())

    def _ask(self) -> None:
        """Read the watchdog's lines up to its answer; of another one where this one is gone."""
        for _ in range(2):
            watchdog = self._watchdog or self._open()
            if watchdog.send(b"?"):
                ends_s = time.monotonic() + OPEN_LIMIT_S
                while (left_s := ends_s - time.monotonic()) > 0 and (line := watchdog.line(left_s)):
                    if line == _ANSWERED:
                        return
                    self._note((line,))
            # Also one that is late: its answer must not be taken for that to a later question.
            self._watchdog = None
        raise HarnessError(
            f"{self._session.node}: the watchdog of its faults does not answer, so whether their"
            " lease ran out is not known"
        )

    def let_go(self) -> None:
        """Stop renewing, and tell the watchdog to end: nothing is in force. Never waits for it."""
        self._over.set()
        # Read once: the thread that renews may take it away meanwhile.
        watchdog = self._watchdog
        if watchdog is not None:
            watchdog.send(b"q")

    def _open(self) -> AttachedCommand:
        """Start a watchdog; it takes the place of any other. Raises ``HarnessError``."""
        numbers = map(str, (LEASE_S, END_S, TURN_S, TURN_MAX_S))
        argv = ("python3", "-I", "-S", "-c", _WATCH, *numbers, CHAIN, PLACE)
        watchdog = self._session.attach(argv, OPEN_LIMIT_S)
        first = watchdog.line(OPEN_LIMIT_S)
        if first != "watching":
            raise HarnessError(f"{self._session.node}: the watchdog of its faults said {first!r}")
        self._watchdog = watchdog
        return watchdog

    def _renew_on(self) -> None:
        while not self._over.wait(RENEW_S):
            self._renew()

    def _renew(self) -> None:
        with self._opening:
            watchdog = self._watchdog
            if watchdog is not None and watchdog.send(b"\n"):
                self._note(watchdog.said())
                return
            self._watchdog = None
            if self._over.is_set() or not self._reachable():
                return
            try:
                self._open()
            except HarnessError:  # tried again at the next turn
                return

    def _note(self, lines: tuple[str, ...]) -> None:
        node = self._session.node
        for line in lines:
            number, _, kinds = line.partition(" ")
            if kinds and len(self._lapses) < LAPSES_MAX:
                self._lapses[number] = (
                    f"{node}: the controller was not heard of for {LEASE_S:g} s, so the lease of"
                    f" its faults ran out and the machine ended its {kinds}"
                )
