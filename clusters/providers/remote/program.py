"""A program on a machine: started detached from the session, addressed by pid and start time.

Pids are used again; (pid, start time in ticks) is not. The pair is read from ``/proc/PID/stat``,
the same over SSH and by any other way of looking, so it serves as the boot id as well.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from clusters.providers.remote.ssh_session import OUTPUT_LIMIT_BYTES, Session
from harness.errors import HarnessError
from harness.protocols.cluster import NODE_LOG_BYTES, CommandResult, LogPiece, NodeStatus

START_LIMIT_S = 10.0
STOP_GRACE_S = 5  # between SIGTERM and SIGKILL
ACT_LIMIT_S = STOP_GRACE_S + 10.0
READ_LIMIT_S = 5.0
READ_MAX_BYTES = OUTPUT_LIMIT_BYTES - 64  # beside the clock's line
# All that is collected of it. A program that floods its log fills at most twice this, and what it
# writes in ``LOG_LOOK_S``.
LOG_KEPT_BYTES = NODE_LOG_BYTES
LOG_LOOK_S = 5
# Leads to the program's log, so that whoever comes later finds it without the plan.
LOG_LINK = "/run/firedrill-log"
# A line of digits for each time that the log had to begin anew: its size until then.
DROPPED = "/run/firedrill-log-dropped"

# The shell that becomes the program first writes down its own entry in /proc: pid and start time
# stay, and are known even of a program that ends at once. A session of its own: no hang-up when SSH
# goes, and orphaned, the init reaps it. Beside it a watch gives the room of a log's oldest part
# back as a hole: offsets of what is kept stay, as readers know them. Where the file system makes
# no holes, the log begins anew, and the bytes that were dropped are added up in ``DROPPED``.
_START = """
set -eu
cd -- "$1"; log=$2; pid_file=$3; kept=$4; look=$5; dropped=$6; shift 6
mkdir -p -- "$(dirname -- "$pid_file")"
rm -f -- "$pid_file"
ln -sfn -- "$log" /run/firedrill-log
setsid sh -c '
  pid_file=$1; shift
  cat "/proc/$$/stat" >"$pid_file.new"; mv -- "$pid_file.new" "$pid_file"
  exec "$@"
' sh "$pid_file" "$@" </dev/null >>"$log" 2>&1 &
until [ -s "$pid_file" ]; do sleep 0.02; done
read -r pid rest <"$pid_file"
setsid sh -c '
  log=$1; kept=$2; look=$3; pid=$4; dropped=$5; gone=0
  while [ -d "/proc/$pid" ]; do
    sleep "$look"
    size=$(stat --format=%s -- "$log") || continue
    [ "$((size - gone))" -gt "$((2 * kept))" ] || continue
    gone=$((size - kept))
    fallocate --punch-hole --offset 0 --length "$gone" -- "$log" || {
      : >"$log"; gone=0; echo "$size" >>"$dropped"
    }
  done
' sh "$log" "$kept" "$look" "$pid" "$dropped" </dev/null >/dev/null 2>&1 &
cat -- "$pid_file"
"""

# Acts on the whole process group, and only if the pid is still the process that was started.
_ACT = """
set -u
pid=$1; ticks=$2; action=$3; grace=$4
look() {
  stat=$(cat "/proc/$pid/stat" 2>/dev/null) || return 1
  set -- ${stat##*) }
  state=$1
  [ "${20}" = "$ticks" ] && [ "$state" != Z ] && [ "$state" != X ]
}
gone() { ! look; }
halted() { ! look || [ "$state" = T ]; }
moving() { ! look || [ "$state" != T ]; }
within() {
  tries=$(($1 * 50)); shift
  until "$@"; do
    tries=$((tries - 1)); [ "$tries" -gt 0 ] || return 1
    sleep 0.02
  done
}
look || exit 0
case $action in
  stop)
    kill -s TERM -- "-$pid"; kill -s CONT -- "-$pid"
    within "$grace" gone || { kill -s KILL -- "-$pid"; within 5 gone; } ;;
  kill) kill -s KILL -- "-$pid"; within 5 gone ;;
  pause) kill -s STOP -- "-$pid"; within 5 halted ;;
  resume) kill -s CONT -- "-$pid"; within 5 moving ;;
esac || { echo "the process is still in state $state" >&2; exit 1; }
cat "/proc/$pid/stat" 2>/dev/null || true
"""


# The machine's clock first, in a line of its own.
_READ = 'date +%s%N; [ ! -e "$1" ] || tail -c "+$2" -- "$1" | head -c "$3"'


@attrs.frozen(kw_only=True)
class Launch:
    """How a program is started: all paths are the machine's."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    work_dir: str
    log: str
    pid_file: str
    own: tuple[str, ...] = ()  # names in ``work_dir`` that are no data: its files and its log


@attrs.frozen(kw_only=True)
class Process:
    """A process that was started: its pid on its machine and its start time in kernel ticks."""

    pid: int
    ticks: int

    @property
    def boot(self) -> str:
        """An identifier that tells this start from every other."""
        return f"{self.pid}-{self.ticks}"


@attrs.frozen(kw_only=True)
class Sight:
    """One reading of ``/proc/PID/stat``."""

    process: Process
    state: str

    @property
    def alive(self) -> bool:
        """Neither a zombie nor dead."""
        return self.state not in ("Z", "X", "x")

    @property
    def paused(self) -> bool:
        """Stopped by a signal."""
        return self.state == "T"


def parse_stat(text: str) -> Sight | None:
    """The process that ``/proc/PID/stat`` describes; ``None`` for an empty text (no process)."""
    head, _, rest = text.rpartition(") ")
    fields = rest.split()
    if not head or len(fields) < 20:
        return None
    process = Process(pid=int(head.split(" ", 1)[0]), ticks=int(fields[19]))
    return Sight(process=process, state=fields[0])


def status(node: str, process: Process | None, stat: str, exit_text: str = "") -> NodeStatus:
    """The status of ``process`` by a reading of ``/proc/PID/stat``.

    ``exit_text`` describes its end if it is gone.
    """
    sight = parse_stat(stat)
    if process is None or sight is None or not sight.alive or sight.process != process:
        boot = process.boot if process else None
        return NodeStatus(node=node, running=False, boot=boot, exit_text=exit_text)
    return NodeStatus(
        node=node, running=True, paused=sight.paused, pid=process.pid, boot=process.boot
    )


def start(session: Session, launch: Launch) -> Process:
    """Start the program and return its process, which may have ended since. Blocking."""
    environment = [f"{name}={value}" for name, value in sorted(launch.env.items())]
    argv = ["env", *environment, *launch.argv]
    said = session.run(
        [
            *("sh", "-c", _START, "sh", launch.work_dir, launch.log, launch.pid_file),
            *(str(LOG_KEPT_BYTES), str(LOG_LOOK_S), DROPPED, *argv),
        ],
        limit_s=START_LIMIT_S,
        name=f"starting {launch.argv[0]}",
    )
    sight = parse_stat(said.decode("utf-8", "replace"))
    if sight is None:
        raise HarnessError(
            f"{session.node}: {launch.argv[0]} left no entry in /proc (got {said!r})"
        )
    return sight.process


def act(session: Session, process: Process, action: str) -> str:
    """``stop``, ``kill``, ``pause`` or ``resume`` the process and wait until it shows.

    Returns ``/proc/PID/stat`` afterwards, empty if it is gone. Acting on a process that is gone
    does nothing.
    """
    said = session.run(
        ["sh", "-c", _ACT, "sh", str(process.pid), str(process.ticks), action, str(STOP_GRACE_S)],
        limit_s=ACT_LIMIT_S,
        name=f"{action} of pid {process.pid}",
    )
    return said.decode("utf-8", "replace")


# Names as arguments, so that none is taken for a pattern or a command.
_EACH_DATUM = """
set -eu
cd -- "$1"; shift
for name in * .[!.]* ..?*; do
  [ -e "$name" ] || [ -L "$name" ] || continue
  for own; do [ "$name" != "$own" ] || continue 2; done
  %s
done
"""
_WIPE = _EACH_DATUM % 'rm -rf -- "$name"'
_SIZES = _EACH_DATUM % 'find "./$name" -type f -printf "%s\\n" 2>/dev/null || true'


def wipe(session: Session, launch: Launch) -> None:
    """Remove all below the working directory that is not the program's own. Blocking."""
    session.run(
        ["sh", "-c", _WIPE, "sh", launch.work_dir, *launch.own],
        limit_s=ACT_LIMIT_S,
        name="wiping its data",
    )


def sizes_command(launch: Launch) -> list[str]:
    """The command that prints the size of each file that ``wipe`` would remove."""
    return ["sh", "-c", _SIZES, "sh", launch.work_dir, *launch.own]


# Its output goes to a file: what the command leaves running would hold the session open.
_COMMAND = """
output=$(mktemp) || exit 125
cd -- "$1" || exit 125
sh -c "$2" > "$output" 2>&1 < /dev/null
echo $?
tail --bytes=4096 -- "$output"
rm -f -- "$output"
"""


def run_command(
    session: Session, work_dir: str, env: Mapping[str, str], command: str, limit_s: float
) -> CommandResult:
    """See ``harness.protocols.cluster.RunsCommands``. Blocking."""
    told = [f"{name}={value}" for name, value in sorted(env.items())]
    said = session.run(
        ["env", *told, "sh", "-c", _COMMAND, "sh", work_dir, command],
        limit_s=limit_s,
        name="a command of the plan",
    )
    status, _, output = said.partition(b"\n")
    if not status.isdigit():
        raise HarnessError(f"{session.node}: expected how a command ended (got {said[:80]!r})")
    return CommandResult(status=int(status), output=output.decode("utf-8", "replace"))


def read_log(session: Session, launch: Launch, offset: int, limit_bytes: int) -> LogPiece:
    """See ``harness.protocols.cluster.ReadsLogs``. At most ``READ_MAX_BYTES``. Blocking."""
    wanted = str(min(limit_bytes, READ_MAX_BYTES))
    said = session.run(
        # tail counts bytes from 1.
        ["sh", "-c", _READ, "sh", launch.log, str(offset + 1), wanted],
        limit_s=READ_LIMIT_S,
        name="reading its log",
    )
    clock, _, content = said.partition(b"\n")
    if not clock.isdigit():
        raise HarnessError(
            f"{session.node}: expected its clock before its log (got {clock[:80]!r})"
        )
    return LogPiece(content=content, wall_ns=int(clock))
