"""Controller and reaper are killed at once, while faults are in force: each ends by its lease.

Two or three processes go in the same moment. Without the watchdog on this machine the machines of
the run end by themselves what can be ended from within; with it nothing of the run is left.
``FIREDRILL_LEASES=all`` tries every kind by itself, both ways.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import docker
import pytest
from capabilities import lacking

from clusters.providers.docker.cleanup import cleanup
from clusters.providers.docker.container import docker_name
from clusters.providers.docker.provider import build
from clusters.providers.process import procfs
from harness.history.run_directory import directory_mark
from harness.protocols.cluster import Capability
from harness.protocols.fault_kinds import BUILT_IN

FIREDRILL = Path(sys.executable).with_name("firedrill")
ROOT = Path(__file__).resolve().parents[2]
EVERY = os.environ.get("FIREDRILL_LEASES") == "all"
FORCE_LIMIT_S = 150  # until a cluster serves and its faults are there, on a crowded machine
LEASE_LIMIT_S = 30
POLL_S = 0.2
# A run that says what others left, and then that local processes can't be frozen.
REFUSED = ("--provider=process", "--schedule=1:freeze:n1", "--executor=local")
BESIDE = ("cli.reaping.reaper", "cli.reaping.watchdog")

# Kind of fault, and what it shows of itself. Of a cut both ends have rules.
WITHIN = {"partition": "cut", "one-way": "cut", "loss": "loss", "delay": "delay", "pause": "pause"}
FROM_OUTSIDE = {"freeze": "freeze", "host-loss": "host-loss"}
SHOWN_BY = """
exec 2> /dev/null
iptables -S FIREDRILL | grep -q 'DROP' && iptables -S FIREDRILL | grep DROP | grep -qv statistic \\
  && echo cut
iptables -S FIREDRILL | grep -q 'statistic' && echo loss
tc qdisc show | grep -q netem && echo delay
cut -d ' ' -f 3 /proc/[0-9]*/stat | grep -q T && echo pause
exit 0
"""


def machines(client: docker.APIClient, run_id: str) -> list[str]:
    """Containers of the run's nodes. The one in which faults are tried out has rules, too."""
    found = client.containers(all=True, filters={"label": f"firedrill.run={run_id}"})
    names = (one["Names"][0].lstrip("/") for one in found)
    return sorted(name for name in names if not name.endswith("-trial"))


def in_force(client: docker.APIClient, run_id: str, kinds: Iterable[str]) -> set[str]:
    """What shows of ``kinds`` on any machine of the run, as the daemon and the kernel tell it.

    A machine is asked from within where one of ``kinds`` shows there alone: a program in a machine
    that is frozen while it starts does not answer before the freeze has ended.
    """
    asked_within = bool(WITHIN.keys() & kinds)
    shown = set[str]()
    for name in machines(client, run_id):
        with contextlib.suppress(docker.errors.APIError):  # it may go at this moment
            state = client.inspect_container(name)["State"]
            if state["Paused"]:
                shown.add("freeze")
            elif not state["Running"]:
                shown.add("host-loss")
            elif asked_within:
                made = client.exec_create(name, ["sh", "-c", SHOWN_BY])
                shown.update(client.exec_start(made["Id"]).decode().split())
    return shown


def ended(client: docker.APIClient, run_id: str, kinds: Iterable[str]) -> float:
    """Seconds until no fault of ``kinds`` is in force in the run any more."""
    last = set[str]()

    def none_left() -> bool:
        nonlocal last
        last = in_force(client, run_id, kinds)
        return not last

    began = time.monotonic()
    while not none_left():
        assert time.monotonic() - began < LEASE_LIMIT_S, f"still in force: {sorted(last)}"
        time.sleep(POLL_S)  # the machines act: there is nothing to wait on
    return time.monotonic() - began


def reached(limit_s: float, look: Callable[[], bool], what: str) -> float:
    """Seconds until ``look`` holds; fails with ``what`` where it does not in time."""
    began = time.monotonic()
    while not look():
        assert time.monotonic() - began < limit_s, what
        time.sleep(POLL_S)  # other processes act: there is nothing to wait on
    return time.monotonic() - began


@contextlib.contextmanager
def broken(
    client: docker.APIClient, store: Path, kinds: dict[str, str]
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A run under way with every kind of ``kinds`` in force, each on a node of its own; nothing of
    it is left after the block.
    """
    faults = [f"--schedule=1:{kind}:n{number}:600" for number, kind in enumerate(kinds, start=1)]
    nodes = max(3, len(kinds))
    plan = [str(ROOT / "scenarios/reference/drill.toml"), "--provider=docker", "--duration=900"]
    plan.append("--executor=local")
    with (store / "output").open("wb") as output:
        controller = subprocess.Popen(
            [FIREDRILL, "run", *plan, *faults, f"--nodes={nodes}", f"--runs-dir={store / 'runs'}"],
            stdout=output,
            stderr=output,
        )
    said = ""

    def all_there() -> bool:
        nonlocal said
        said = (store / "output").read_text(errors="replace")[-2000:]
        assert controller.poll() is None, said
        return bool(run_of(store)) and in_force(client, run_of(store), kinds) >= set(kinds.values())

    try:
        reached(FORCE_LIMIT_S, all_there, "faults are not in force")
        yield run_of(store), controller
    finally:
        for process in (*beside(run_of(store)), controller.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        controller.wait(timeout=20)
        cleanup(run_of(store) or "none", force=True)


def run_of(store: Path) -> str:
    """The run's identifier; empty where there is none yet."""
    with contextlib.suppress(OSError):
        return os.readlink(store / "runs" / "latest")
    return ""


def beside(run_id: str, modules: tuple[str, ...] = BESIDE) -> list[int]:
    """Processes that stand beside the run."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if entry.name.isdigit() and run_id in words and any(m in words for m in modules):
                found.append(int(entry.name))
    return found


def kill_at_once(pids: list[int]) -> None:
    for pid in pids:  # stopped first, so that none sees another's end
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def able(docker_daemon: docker.APIClient) -> frozenset[Capability]:
    """What containers can do on this machine."""
    return asyncio.run(build(f"t-able-{os.getpid()}", {}, Path("unused")).capabilities())


def possible(kinds: dict[str, str], able: frozenset[Capability]) -> dict[str, str]:
    """Those of ``kinds`` that can be done here; a kernel may have no netem."""
    found = {kind: shows for kind, shows in kinds.items() if BUILT_IN[kind].needs <= able}
    return found or lacking(
        f"containers on this machine can't do {', '.join(kinds)}", promised=False
    )


def parts(kinds: dict[str, str], *together: str) -> list[dict[str, str]]:
    """The faults of each try: ``together`` in one run, or every one of ``kinds`` by itself."""
    every = [{kind: shows} for kind, shows in kinds.items()]
    return every if EVERY else [{kind: kinds[kind] for kind in together}]


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("kinds", parts(WITHIN, "one-way", "loss", "delay", "pause"), ids="-".join)
def test_machines_end_their_own_faults_once_nobody_is_left(
    kinds: dict[str, str],
    tmp_path: Path,
    docker_daemon: docker.APIClient,
    able: frozenset[Capability],
) -> None:
    kinds = possible(kinds, able)
    with broken(docker_daemon, tmp_path, kinds) as (run_id, controller):
        there = machines(docker_daemon, run_id)
        helpers = beside(run_id)
        assert len(helpers) == len(BESIDE)

        kill_at_once([controller.pid, *helpers])

        took_s = ended(docker_daemon, run_id, kinds)
        print(f"{', '.join(kinds)}: ended after {took_s:.1f} s")
        assert machines(docker_daemon, run_id) == there  # by the lease, not by a removal

        said = subprocess.run(
            [FIREDRILL, "run", *REFUSED, f"--runs-dir={tmp_path / 'next'}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        # Other runs of this machine may have been killed, too.
        assert re.search(r"that died left \d+ containers, \d+ networks? of", said.stderr)
        assert run_id in said.stderr
        assert "firedrill cleanup removes it" in said.stderr


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize(
    "kinds",
    parts({**FROM_OUTSIDE, **WITHIN} if EVERY else FROM_OUTSIDE, *FROM_OUTSIDE),
    ids="-".join,
)
def test_nothing_is_left_of_a_run_whose_controller_and_reaper_are_gone(
    kinds: dict[str, str],
    tmp_path: Path,
    docker_daemon: docker.APIClient,
    able: frozenset[Capability],
) -> None:
    kinds = possible(kinds, able)
    with broken(docker_daemon, tmp_path, kinds) as (run_id, controller):
        kill_at_once([controller.pid, *beside(run_id, BESIDE[:1])])

        ended_s = ended(docker_daemon, run_id, kinds)
        reached(LEASE_LIMIT_S, lambda: not machines(docker_daemon, run_id), "machines are left")
        print(f"{', '.join(kinds)}: ended after {ended_s:.1f} s")
        reached(LEASE_LIMIT_S, lambda: not beside(run_id), "the watchdog goes on")
        log = (tmp_path / "runs" / run_id / "reaper.log").read_text()
        assert "controller and reaper are gone" in log
        assert f"container {docker_name(run_id, 'n1')} of run" in log


@pytest.mark.slow
def test_local_programs_that_stand_still_are_ended_once_controller_and_reaper_are_gone(
    tmp_path: Path,
) -> None:
    plan = [str(ROOT / "scenarios/reference/drill.toml"), "--provider=process", "--duration=900"]
    words = [
        *plan,
        "--executor=local",
        "--schedule=1:pause:n1:600",
        f"--runs-dir={tmp_path / 'runs'}",
    ]
    controller = subprocess.Popen(
        [FIREDRILL, "run", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def programs() -> list[procfs.Look]:
        if not run_of(tmp_path):
            return []
        every = procfs.marked(directory_mark(tmp_path / "runs" / run_of(tmp_path)))
        return [look for one in every if (look := procfs.find(one))]

    try:
        reached(FORCE_LIMIT_S, lambda: any(p.paused for p in programs()), "nothing was paused")
        kill_at_once([controller.pid, *beside(run_of(tmp_path), BESIDE[:1])])

        reached(LEASE_LIMIT_S, lambda: not programs(), "programs are left")
        reached(LEASE_LIMIT_S, lambda: not beside(run_of(tmp_path)), "the watchdog goes on")
    finally:
        for pid in (*beside(run_of(tmp_path)), *(p.identity.pid for p in programs())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        controller.kill()
        controller.wait(timeout=20)
