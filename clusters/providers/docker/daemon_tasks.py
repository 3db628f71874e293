"""The provider's work through the daemon on a lane: trying, observing, collecting. All of it
blocks.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec

from clusters.providers.docker.daemon import DaemonError
from clusters.providers.docker.machines import Machines, MachineState
from clusters.providers.remote import program
from harness.errors import HarnessError
from harness.history.durable_files import disk_failure
from harness.protocols.cluster import NODE_LOG_BYTES, Capability, NodeStatus

CONTAINER_LOG_LINES = 2000
DROPPED_MAX_BYTES = 1 << 16  # of the sizes of dropped parts, ten digits each
EXIT_TEXT_BYTES = 32 << 10  # of a log's end, in which its last words are looked for
EXIT_TEXT_CHARS = 120
LOOKS = 3  # one in some thousand shows nothing on a crowded host; the next one does
TRIAL = "trial"
# Of control groups version 2 and 1: one of them is there.
OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_OOM_KILLS = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_FRAME = re.compile(r"\s+(at \S|\.\.\. \d+ )")  # of a JVM's stack, which says nothing by itself

# Each word is said only if the thing works: rules by address in a chain of our own, signals, and
# what is measured on the loopback interface while it loses half of the packets, or delays them.
_TRY = """
iptables -w 5 -N FIREDRILL && iptables -w 5 -A FIREDRILL -s 198.18.0.9/32 -j DROP \\
  && iptables -w 5 -I INPUT 1 -j FIREDRILL && echo rules
sleep 30 & pid=$!
kill -STOP $pid && kill -CONT $pid && echo signals
kill -KILL $pid
mkdir -p /var/tmp/trial/a && rm -rf -- /var/tmp/trial && [ ! -e /var/tmp/trial ] && echo files
ip link set lo up
iptables -w 5 -I INPUT 1 -i lo -m statistic --mode random --probability 0.5 -j DROP \\
  && python3 -I -c "$1" loss
iptables -w 5 -D INPUT 1
tc qdisc add dev lo root netem delay 30ms && python3 -I -c "$1" delay
exit 0
"""
_MEASURE = """
import select, socket, sys, time
ends = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for end in ends:
    end.bind(("127.0.0.1", 0))
arrived, trips = 0, []
for _ in range(100):
    began = time.perf_counter()
    ends[0].sendto(b"x", ends[1].getsockname())
    if select.select([ends[1]], [], [], 0.1 if sys.argv[1] == "delay" else 0.001)[0]:
        ends[1].recv(1)
        arrived += 1
        trips.append(time.perf_counter() - began)
    if sys.argv[1] == "delay" and len(trips) == 3:
        break
if sys.argv[1] == "loss" and 20 <= arrived <= 80:
    print("loss")
if sys.argv[1] == "delay" and trips and min(trips) >= 0.03:
    print("delay")
"""
_CAN = {
    "rules": (Capability.PARTITION, Capability.ONE_WAY_PARTITION),
    "signals": (Capability.KILL, Capability.PAUSE),
    "files": (Capability.WIPE,),
    "loss": (Capability.PACKET_LOSS,),
    "delay": (Capability.DELAY,),
    "freezer": (Capability.FREEZE,),
}


def try_capabilities(machines: Machines) -> frozenset[Capability]:
    """The capabilities that work in a container made to find out. Losing one needs no more than the
    daemon, a command no more than the session that starts programs.
    """
    try:
        machines.create_trial(TRIAL)
        argv = ["sh", "-c", _TRY, "sh", _MEASURE]
        said = machines.execute(TRIAL, argv)[1].decode("utf-8", "replace").split()
        if _freezes(machines):
            said.append("freezer")
    finally:
        machines.remove(machines.name(TRIAL))
    found = {able for word, ables in _CAN.items() if word in said for able in ables}
    return frozenset(found | {Capability.HOST_LOSS, Capability.COMMANDS})


def _freezes(machines: Machines) -> bool:
    """Whether the trial container can be frozen and thawed."""
    try:
        machines.freeze(TRIAL)
        frozen = machines.state(TRIAL).frozen
        machines.thaw(TRIAL)
        return frozen and not machines.state(TRIAL).frozen
    except DaemonError:
        return False


GONE = "gone"
_READ_STAT = f'cat "/proc/$1/stat" 2>/dev/null || {{ [ -d /proc/self ] && echo {GONE}; }}'


def look(
    machines: Machines,
    node: str,
    process: program.Process | None,
    launch: program.Launch | None,
    lost: bool = False,
) -> NodeStatus:
    """The kernel's view of ``process``, asked for through the daemon.

    Raises ``HarnessError`` for a machine that is gone without being ``lost`` by us: the program on
    it did not end by itself.
    """
    state = machines.state(node)
    if not state.running:
        if not lost:
            _refuse_vanished(node, state)
        return program.status(node, process, "", exit_text=state.text)
    if process is None:
        return NodeStatus(node=node, running=False, exit_text="not started")
    if state.frozen:  # a frozen machine runs no command of ours either
        return NodeStatus(node=node, running=True, frozen=True, pid=process.pid, boot=process.boot)
    seen = program.status(node, process, _stat(machines, node, process.pid))
    if seen.running or launch is None:
        return seen
    last = machines.execute(node, ["tail", f"--bytes={EXIT_TEXT_BYTES}", "--", launch.log])[1]
    gone = program.status(node, process, "", f"ended{_killed_for_memory(machines, node)}")
    return msgspec.structs.replace(gone, last_words=last_words(last))


def data_bytes(machines: Machines, node: str, launch: program.Launch) -> int:
    """The size of the data of the program on ``node``, asked for through the daemon. Raises
    ``HarnessError``.
    """
    code, told = machines.execute(node, program.sizes_command(launch))
    sizes = told.split()
    if code != 0 or not all(size.isdigit() for size in sizes):
        raise HarnessError(f"{node}: the size of its data can't be told (got {told[:80]!r})")
    return sum(map(int, sizes))


def last_words(log_end: bytes) -> str:
    """The last line of a log that says something, cut to its beginning where it is long; where the
    log ends in a stack of a JVM, the exception of that stack.
    """
    lines = log_end.decode("utf-8", "replace").strip().splitlines()
    told = [line for line in lines if line.strip() and not _FRAME.match(line)]
    line = (told or lines or [""])[-1].strip()
    return line if len(line) <= EXIT_TEXT_CHARS else f"{line[:EXIT_TEXT_CHARS]}..."


def _stat(machines: Machines, node: str, pid: int) -> str:
    """``/proc/PID/stat``; empty where there is no such process.

    The machine has to report that itself: on a crowded host the daemon may give neither output nor
    exit status of a command. Raises ``HarnessError`` where ``LOOKS`` such probes showed nothing.
    """
    for _ in range(LOOKS):
        code, said = machines.execute(node, ["sh", "-c", _READ_STAT, "sh", str(pid)])
        text = said.decode("utf-8", "replace").strip()
        if text == GONE:
            return ""
        if program.parse_stat(text) is not None:
            return text
    answer = f"status {code}, output {text[:80]!r}"
    raise HarnessError(f"docker: looking at process {pid} of {node} showed nothing: {answer}")


def _killed_for_memory(machines: Machines, node: str) -> str:
    """Kills for lack of memory as the kernel counted them on the machine: Docker reports only those
    of a container's first process.
    """
    said = machines.execute(node, ["cat", *OOM_COUNTERS])[1]
    kills = max((int(count) for count in _OOM_KILLS.findall(said)), default=0)
    if not kills:
        return ""
    return f", after the kernel killed {kills} process{'es' * (kills > 1)} there for memory"


def _refuse_vanished(node: str, state: MachineState) -> None:
    """Raise where the machine's end was caused neither by us nor by the store: its init and sshd
    don't end by themselves, and only a lack of memory may take them along.
    """
    if not state.running and not state.no_memory:
        why = "its daemon was restarted, or somebody stopped it"
        raise HarnessError(
            f"{node}: its machine is gone, which was none of ours: {state.text} ({why})"
        )


def collect(
    machines: Machines,
    node: str,
    launch: program.Launch | None,
    into: Path,
    lost: bool = False,
) -> dict[str, int]:
    """Write the program's log and ``container.log`` into ``into``; returns the number of bytes left
    out of the program's log, by its file's name. Then raises as ``look``, and ``HarnessError``
    where the disk refuses.
    """
    left_out = {}
    try:
        into.mkdir(parents=True, exist_ok=True)
        # Of the machine, not of the store: of that log no beginning is missed.
        machine_log = machines.container_log(node, CONTAINER_LOG_LINES)
        (into / "container.log").write_bytes(machine_log[-NODE_LOG_BYTES:])
        if launch is not None:
            path = into / Path(launch.log).name
            with path.open("wb") as target:
                left_out[path.name] = machines.file_tail(node, launch.log, NODE_LOG_BYTES, target)
            left_out[path.name] += _dropped_bytes(machines, node)
    except OSError as error:
        raise disk_failure("collect logs into", into, error, "they are missing") from error
    # Raised last: the logs of a machine that is gone are what explains its end.
    if not lost:
        _refuse_vanished(node, machines.state(node))
    return {name: count for name, count in left_out.items() if count}


def _dropped_bytes(machines: Machines, node: str) -> int:
    """The size of the parts of the program's log that the machine itself dropped."""
    told = io.BytesIO()
    machines.file_tail(node, program.DROPPED, DROPPED_MAX_BYTES, told)
    return sum(int(line) for line in told.getvalue().split() if line.isdigit())
