"""Mistakes in a plug-in are told before anything starts, with its package, file and line; those
that show only while a run goes on are told on the terminal.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path

import pytest

from harness import plugin_trial, plugins
from harness.errors import BrokenPlugin
from harness.history.manifest import SEALED, read_manifest
from harness.history.run_directory import RunDirectory
from harness.protocols.checker import Checker, Kernel

LIMIT_S = 120
CHECKER = """
from harness.exit_codes import Outcome
from harness.protocols.checker import Part

class Counter:
    name = "counter"
    kernels = ()

    def judge(self, tables, setting, lookup):
        return Part()

CHECKER = Counter()
"""
WORKLOAD = """
from harness.generators import Nothing, Repeat, UntilOk
from harness.history.records import MicroOp

class Count:
    name = "count"
    checkers = ("counter", "statistics", "availability", "evidence")

    def first(self):
        return Nothing()

    def main(self):
        return Repeat((MicroOp("inc", 1),))

    def final(self, keys):
        return UntilOk(tuple((MicroOp("inc", key),) for key in keys))

    async def execute(self, tx, ops):
        await tx.write(1, 1)
        return ops

def build(options, setting):
    return Count()
"""
POINTS = """[firedrill.workloads]
count = plugged.workload:build

[firedrill.checkers]
counter = plugged.checker:CHECKER
"""
DRILL = [
    *("run", "--provider", "sim", "--executor", "local", "--workload", "count", "--nodes", "3"),
    *("--duration", "1", "--set", "nemesis.mix=[]", "--set", "check.min_ok=1", "--no-report"),
]


def install(target: Path, workload: str = WORKLOAD, checker: str = CHECKER) -> None:
    """A package as pip leaves it, with a workload and a checker."""
    package, about = target / "plugged", target / "plugged_counter-1.2.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    (package / "__init__.py").touch()
    (package / "workload.py").write_text(workload)
    (package / "checker.py").write_text(checker)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-counter\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(POINTS)


def install_fault(target: Path, source: str) -> None:
    """A package with a kind of fault, ``boom``, in one module."""
    about = target / "boom-1.0.dist-info"
    about.mkdir(parents=True)
    (target / "boom_fault.py").write_text(source)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: boom\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[firedrill.faults]\nboom = boom_fault:build\n")


def firedrill(
    target: Path, runs: Path, *words: str, stdin: int = subprocess.DEVNULL
) -> tuple[int, str]:
    runs.mkdir(exist_ok=True)
    command = Path(sys.executable).with_name("firedrill")
    done = subprocess.run(
        (str(command), *words, "--runs-dir", str(runs)),
        env={**os.environ, "PYTHONPATH": str(target), "COLUMNS": "400"},
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=runs,
    )
    return done.returncode, done.stdout + done.stderr


def line_of(source: str, text: str) -> int:
    return next(n for n, line in enumerate(source.splitlines(), start=1) if text in line)


@pytest.mark.parametrize(
    ("workload", "checker", "told"),
    [
        (
            WORKLOAD.replace('"counter"', '"countr"'),
            CHECKER,
            "the checkers of 'count' (plugged.workload.Count): unknown checker 'countr' "
            "(did you mean 'counter'?",
        ),
        (
            WORKLOAD.replace("async def execute", "async def perform"),
            CHECKER,
            "workload 'count' of package plugged-counter 1.2: Count has no 'execute' (",
        ),
        (
            "import no_such_module\n" + WORKLOAD,
            CHECKER,
            "workload 'count' of package plugged-counter 1.2: ModuleNotFoundError: No module "
            "named 'no_such_module' (plugged/workload.py:1)",
        ),
        (
            "import sys\nsys.exit(3)\n" + WORKLOAD,
            CHECKER,
            "workload 'count' of package plugged-counter 1.2: SystemExit: 3 "
            "(plugged/workload.py:2)",
        ),
        (
            WORKLOAD,
            CHECKER.replace('name = "counter"', 'name = "list-append"'),
            "checker 'counter' of package plugged-counter 1.2: name: expected that of its entry "
            "point, 'counter' (got 'list-append')",
        ),
        (
            WORKLOAD,
            "from harness.api import breaking\nbreaking('read-commited')\n" + CHECKER,
            "checker 'counter' of package plugged-counter 1.2: UsageError: ",
        ),
        (
            WORKLOAD,
            CHECKER.replace("def judge", "def judged"),
            "checker 'counter' of package plugged-counter 1.2: Counter has no 'judge' (",
        ),
        (
            WORKLOAD.replace("return Count()", "return Count(options.size)"),
            CHECKER,
            "workload 'count' of package plugged-counter 1.2: AttributeError: 'dict' object has no "
            "attribute 'size' (plugged/workload.py:23)",
        ),
        (
            WORKLOAD.replace("return Nothing()", "return None"),
            CHECKER,
            "workload 'count' (plugged.workload.Count): first: expected a Generator, with 'op' and "
            "'update' (got NoneType)",
        ),
        (
            WORKLOAD.replace('return Repeat((MicroOp("inc", 1),))', "return {}['inc']"),
            CHECKER,
            "workload 'count' of package plugged-counter 1.2: KeyError: 'inc' "
            "(plugged/workload.py:13)",
        ),
        (
            WORKLOAD.replace('name = "count"', 'name = "bank"'),
            CHECKER,
            "workload 'count' of package plugged-counter 1.2: name: expected that of its entry "
            "point, 'count' (got 'bank')",
        ),
    ],
    ids=[
        "unknown checker",
        "no execute",
        "no import",
        "sys.exit",
        "another's name",
        "model",
        "no judge",
        "build raises",
        "no generator",
        "main raises",
        "a built-in name",
    ],
)
def test_a_mistake_in_a_plugin_is_told_before_anything_starts(
    workload: str, checker: str, told: str, tmp_path: Path
) -> None:
    install(tmp_path / "site", workload, checker)

    code, said = firedrill(tmp_path / "site", tmp_path / "runs", *DRILL)

    assert (code, list((tmp_path / "runs").iterdir())) == (254, []), said
    assert told in said


def test_a_campaign_judges_again_once_a_plugged_checker_was_edited(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    campaign = [*("sim", "--workload", "count", "--seeds", "1", "--set", "drive.duration_s=1"),
                *("--set", "nemesis.mix=[]", "--set", "check.min_ok=1")]  # fmt: skip
    install(tmp_path / "site")

    assert firedrill(tmp_path / "site", runs, *campaign)[0] == 0
    again = firedrill(tmp_path / "site", runs, *campaign)[1]
    edited = CHECKER.replace("Part()", "Part(outcome=Outcome.VIOLATION, reasons=('one is off',))")
    (tmp_path / "site" / "plugged" / "checker.py").write_text(edited)
    code, said = firedrill(tmp_path / "site", runs, *campaign)

    assert "1 of 1 seeds are known" in again
    assert (code, "are known" in said) == (1, False), said


def test_a_workload_that_raises_is_named_on_the_terminal(tmp_path: Path) -> None:
    broken = WORKLOAD.replace("await tx.write(1, 1)", "raise ValueError('bad')")
    install(tmp_path / "site", broken)

    code, said = firedrill(tmp_path / "site", tmp_path / "runs", *DRILL)

    place = f"plugged/workload.py:{line_of(broken, 'raise ValueError')}"
    assert code == 2, said
    assert "because: vacuous: no 'inc' ever succeeded" in said
    assert f"client-bug:ValueError at {place} " in said


LEAVES = {"raise SystemExit(0)": "SystemExit", "__import__('os')._exit(0)": "ProcessExit"}
ON_NODES = [
    *(word if word != "sim" else "process" for word in DRILL),
    *("--set", "limits.final_reads_s=1"),
]
TWO_DRIVERS = [*ON_NODES, "--set", "drive.drivers=2"]
LEAVES_NODES = ["__import__('os')._exit(0)", "ProcessExit"]


@pytest.mark.parametrize(
    ("act", "kind", "drill"),
    [
        *((*leaves, DRILL) for leaves in LEAVES.items()),
        (*LEAVES_NODES, ON_NODES),
        (*LEAVES_NODES, TWO_DRIVERS),
    ],
    ids=["simulated SystemExit", "simulated ProcessExit", "on nodes", "two drivers"],
)
def test_a_workload_that_leaves_as_it_drives_is_a_bug_of_its_own(
    act: str, kind: str, drill: list[str], tmp_path: Path
) -> None:
    leaving = WORKLOAD.replace("await tx.write(1, 1)", act)
    install(tmp_path / "site", leaving)

    code, said = firedrill(tmp_path / "site", tmp_path / "runs", *drill)

    place = f"plugged/workload.py:{line_of(leaving, act)}"
    assert code == 2, said
    assert f"client-bug:{kind} at {place} " in said
    sealed = RunDirectory((tmp_path / "runs" / "latest").resolve())
    assert read_manifest(sealed).state == SEALED
    assert not list(sealed.undo.glob("*"))


GENERATOR = """
class Odd:
    def op(self, context):
        {act}

    def update(self, context, event):
        return self

def build"""


@pytest.mark.parametrize(
    ("drivers", "member", "act", "told"),
    [
        (1, "main", "raise KeyError('odd')", "KeyError: 'odd'"),
        (1, "main", "raise SystemExit(0)", "SystemExit: 0"),
        (1, "main", "raise __import__('asyncio').CancelledError", "CancelledError"),
        (1, "final", "__import__('os')._exit(0)", "ProcessExit: os._exit(0)"),
        (2, "main", "__import__('os')._exit(0)", "ProcessExit: os._exit(0)"),
    ],
)
def test_a_generator_that_breaks_as_it_drives_is_named_and_the_run_is_sealed(
    member: str, act: str, told: str, drivers: int, tmp_path: Path
) -> None:
    before = {
        "main": 'return Repeat((MicroOp("inc", 1),))',
        "final": 'return UntilOk(tuple((MicroOp("inc", key),) for key in keys))',
    }[member]
    odd = WORKLOAD.replace(before, "return Odd()")
    odd = odd.replace("\ndef build", GENERATOR.replace("{act}", act))
    install(tmp_path / "site", odd)
    drill = DRILL if drivers == 1 else TWO_DRIVERS

    code, said = firedrill(tmp_path / "site", tmp_path / "runs", *drill)

    place = f"plugged/workload.py:{line_of(odd, act)}"
    assert f"workload 'count' of package plugged-counter 1.2: {told} ({place})" in said
    assert code == (254 if drivers == 1 else 2), said
    assert "unexpected" not in said
    sealed = RunDirectory((tmp_path / "runs" / "latest").resolve())
    assert read_manifest(sealed).state == SEALED


@pytest.mark.parametrize(
    ("act", "told"),
    [
        ("raise __import__('asyncio').CancelledError", "heal failed: CancelledError"),
        ("raise SystemExit(0)", "heal failed: SystemExit: 0"),
    ],
)
def test_a_heal_that_leaves_has_failed_and_breaks_no_more(
    act: str, told: str, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    install(site)
    text = FAULT.format(act="pass").replace(
        "node):\n        pass\n\n    def eff", f"node):\n        {act}\n\n    def eff"
    )
    install_fault(site, text)
    used = [word.replace("nemesis.mix=[]", "nemesis.mix=['boom']") for word in DRILL]

    code, said = firedrill(
        site,
        tmp_path / "runs",
        *used,
        "--set",
        "nemesis.first_s=0.2",
        "--set",
        "nemesis.hold_s=0.3",
        "--set",
        "nemesis.quiet_s=0.1",
    )

    assert code == 2, said
    assert told in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("act", "told"),
    [
        ("raise KeyError(keys[0])", "KeyError: 1"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("return None", "final: expected a Generator, with 'op' and 'update' (got NoneType)"),
    ],
)
def test_a_workload_without_final_reads_is_named_and_the_run_is_sealed(
    act: str, told: str, tmp_path: Path
) -> None:
    before = 'return UntilOk(tuple((MicroOp("inc", key),) for key in keys))'
    odd = WORKLOAD.replace(before, act)
    install(tmp_path / "site", odd)

    code, said = firedrill(tmp_path / "site", tmp_path / "runs", *DRILL)

    assert code == 254, said
    assert told in said
    if "raise" in act:
        place = f"plugged/workload.py:{line_of(odd, act)}"
        assert f"workload 'count' of package plugged-counter 1.2: {told} ({place})" in said
    sealed = RunDirectory((tmp_path / "runs" / "latest").resolve())
    assert read_manifest(sealed).state == SEALED


FAULT = """
from harness.api import Effect, FaultKind, Proof
from nemesis.node_faults import NodeFault

class Boom:
    async def inject(self, provider, node):
        {act}

    async def heal(self, provider, node):
        pass

    def effective(self, look):
        return Proof(holds=True, text="as it says")

def build():
    return NodeFault(kind=FaultKind(name="boom", effects=frozenset()), verbs=Boom())
"""


@pytest.mark.parametrize(
    ("provider", "act", "kind"),
    [
        *(
            ("sim", *leaves)
            for leaves in {**LEAVES, "raise KeyError('x')": "KeyError: 'x'"}.items()
        ),
        ("process", *LEAVES_NODES),
    ],
)
def test_a_fault_that_leaves_as_it_is_injected_is_named_and_the_run_is_sealed(
    provider: str, act: str, kind: str, tmp_path: Path
) -> None:
    source = FAULT.replace("{act}", act)
    install_fault(tmp_path / "site", source)
    drill = ["run", "--provider", provider, "--executor", "local", "--nodes", "3", "--no-report",
             "--duration", "3", "--schedule", "1:boom:n1:1", "--set", "check.min_ok=1"]  # fmt: skip

    code, said = firedrill(tmp_path / "site", tmp_path / "runs", *drill)

    assert code == 2, said
    assert f"inject failed: {kind}" in said
    assert f"(boom_fault.py:{line_of(source, act)})" in said
    sealed = RunDirectory((tmp_path / "runs" / "latest").resolve())
    assert read_manifest(sealed).state == SEALED
    assert not list(sealed.undo.glob("*"))


@pytest.mark.parametrize(
    ("act", "why"),
    [
        ("import os; os._exit(0)", "its process ended before it was done"),
        (
            "import os, sys, json; os.write(json.loads(sys.argv[1])['reply'], b'what?\\n')",
            "its process said what is no reply ('what?')",
        ),
        ("import sys; sys.exit(0)", "SystemExit: 0 (plugged/checker.py:10)"),
    ],
)
def test_a_checker_that_leaves_gives_up_alone(act: str, why: str, tmp_path: Path) -> None:
    install(tmp_path / "site", checker=CHECKER.replace("return Part()", act))

    code, said = firedrill(tmp_path / "site", tmp_path / "runs", *DRILL)

    assert code == 2, said
    assert f"because: checker counter gave up: {why}" in said
    assert "did not end" not in said


def test_a_checker_that_asks_a_person_gives_up_alone(tmp_path: Path) -> None:
    asking = CHECKER.replace("return Part()", "input()")
    install(tmp_path / "site", checker=asking)
    listened, spoken = os.pipe()  # a terminal on which nobody types
    try:
        code, said = firedrill(tmp_path / "site", tmp_path / "runs", *DRILL, stdin=listened)
    finally:
        os.close(listened)
        os.close(spoken)

    assert code == 2, said
    place = f"plugged/checker.py:{line_of(asking, 'input()')}"
    assert f"checker counter gave up: EOFError: EOF when reading a line ({place})" in said


def test_a_checker_holds_neither_stdout_nor_the_command(tmp_path: Path) -> None:
    loud = """
        import threading
        threading.Thread(target=threading.Event().wait).start()
        print("VALID: everything")
        return Part()
"""
    install(tmp_path / "site", checker=CHECKER.replace("        return Part()", loud))
    assert firedrill(tmp_path / "site", tmp_path / "runs", *DRILL)[0] == 0

    run = str(tmp_path / "runs" / "latest")
    _, said = firedrill(
        tmp_path / "site", tmp_path / "runs", "check", run, "--json", "--executor", "local"
    )

    # What a person is told follows on stderr.
    found, _ = json.JSONDecoder().raw_decode(said)
    assert found["outcome"] == "valid"
    assert "VALID: everything" in said


def test_a_checker_that_gives_up_says_where(tmp_path: Path) -> None:
    broken = CHECKER.replace("return Part()", "return tables['boom']")
    install(tmp_path / "site", checker=broken)

    code, said = firedrill(tmp_path / "site", tmp_path / "runs", *DRILL)

    place = f"plugged/checker.py:{line_of(broken, 'boom')}"
    assert code == 2, said
    assert f"because: checker counter gave up: KeyError: 'boom' ({place})" in said


def test_the_doctor_looks_at_plugins(tmp_path: Path) -> None:
    install(tmp_path / "site", checker="import no_such_module\n")

    _, said = firedrill(tmp_path / "site", tmp_path / "runs", "doctor", "--json")

    assert '"workload count"' in said
    assert "No module named 'no_such_module' (plugged/checker.py:1)" in said
    assert "mend or uninstall plugged-counter 1.2" in said


ENDS = {
    "import sys\nsys.exit(3)": "SystemExit: 3",
    "raise SystemExit": "SystemExit",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise GeneratorExit('x')": "GeneratorExit: x",
    "import os\nos._exit(0)": "ProcessExit: os._exit(0)",
    "import os\nos.abort()": "ProcessExit: os.abort()",
}


@pytest.mark.parametrize(("source", "text"), ENDS.items(), ids=ENDS.values())
def test_a_plugin_that_ends_the_process_as_it_is_loaded_is_named(source: str, text: str) -> None:
    before = os._exit, os.abort
    code = compile(source, "boom/fault.py", "exec")

    with pytest.raises(BrokenPlugin) as error, plugins.naming("faults", "boom"):
        exec(code, {"__package__": "boom"})  # noqa: S102 (as an import does)

    line = len(source.splitlines())
    assert str(error.value) == f"fault 'boom': {text} (boom/fault.py:{line})"
    assert (os._exit, os.abort) == before


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def interrupt_after_a_failure(*_: object) -> None:
    """As pyspark's handler, which cancels the jobs of a JVM that may be gone."""
    try:
        raise ConnectionRefusedError("the JVM is gone")
    finally:
        raise KeyboardInterrupt


def interrupt_once(*_: object) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt()


class Interrupts:
    def __call__(self, *_: object) -> None:
        interrupt()


@pytest.fixture
def handled() -> Iterator[Callable[[Callable[..., object]], object]]:
    """Installs a handler of SIGINT, whatever another test left, and restores that one."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    "handler",
    [
        *(signal.default_int_handler, interrupt, interrupt_after_a_failure, interrupt_once),
        Interrupts(),
    ],
    ids=["the interpreter's", "of Python", "fails first", "once", "an object"],
)
def test_an_interruption_while_a_plugin_is_loaded_is_the_users(
    handler: Callable[..., object], handled: Callable[[Callable[..., object]], object]
) -> None:
    handled(handler)

    with pytest.raises(KeyboardInterrupt), plugins.naming("faults", "boom"):
        signal.raise_signal(signal.SIGINT)


def test_a_plugin_that_interrupts_beside_a_handler_of_python_is_named(
    handled: Callable[[Callable[..., object]], object],
) -> None:
    handled(interrupt)

    with pytest.raises(BrokenPlugin), plugins.naming("faults", "boom"):
        raise KeyboardInterrupt


def test_a_child_that_a_plugin_forks_ends_as_it_asked_to() -> None:
    with plugins.naming("faults", "boom"):
        child = os.fork()
        if not child:
            os._exit(7)
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 7


def test_threads_that_load_plugins_side_by_side_are_kept_alive_alone() -> None:
    before = os._exit, os.abort
    one, two = plugins.naming("faults", "one"), plugins.naming("faults", "two")
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        first.submit(one.__enter__).result()
        second.submit(two.__enter__).result()
        first.submit(one.__exit__, None, None, None).result()
        with pytest.raises(plugins.ProcessExit):
            second.submit(os._exit, 7).result()
        second.submit(two.__exit__, None, None, None).result()

    assert (os._exit, os.abort) == before


def listed(site: Path, what: str) -> subprocess.CompletedProcess[str]:
    """``firedrill list``, which knows no runs directory, in lines that are long enough."""
    return subprocess.run(
        (str(Path(sys.executable).with_name("firedrill")), "list", what),
        env={**os.environ, "PYTHONPATH": str(site), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=site,
    )


def test_two_packages_of_one_plugin_are_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("boom", "bang"):
        install_fault(tmp_path / name, "def build():\n    return 1\n")
        about = tmp_path / name / "boom-1.0.dist-info" / "METADATA"
        about.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path / "boom")

    def installed(*sites: str) -> None:
        found = distributions(path=[str(tmp_path / site) for site in sites])
        points = tuple(point for each in found for point in each.entry_points)
        monkeypatch.setattr(plugins, "_points", lambda group: points)

    installed("boom", "boom")
    assert plugins.load("faults", "boom")() == 1
    installed("boom", "bang")
    with pytest.raises(BrokenPlugin, match=r"'boom': .* \(got bang 1\.0 and boom 1\.0\)"):
        plugins.load("faults", "boom")


def test_a_checker_whose_kernels_raise_as_they_are_looked_at_is_named() -> None:
    class Odd:
        name = "odd"

        @property
        def kernels(self) -> tuple[Kernel, ...]:
            raise SystemExit(0)

    with pytest.raises(BrokenPlugin, match=r"checker 'odd'.*SystemExit: 0 .*test_cli_plugins\.py:"):
        plugins.made("checkers", "odd", Checker, Odd)


def test_a_plugin_that_would_end_the_process_stops_no_drill_without_it(tmp_path: Path) -> None:
    site, runs = tmp_path / "site", tmp_path / "runs"
    install(site)
    install_fault(site, "import os\nos._exit(0)\n")
    told = "fault 'boom' of package boom 1.0: ProcessExit: os._exit(0) (boom_fault.py:2)"

    code, said = firedrill(site, runs, *DRILL)
    assert (code, "VALID" in said) == (0, True), said
    kept = sorted(path.name for path in runs.iterdir())

    used = [word.replace("nemesis.mix=[]", "nemesis.mix=['boom']") for word in DRILL]
    for words in (used, ["plan", *used[1:-1]]):
        code, said = firedrill(site, runs, *words)
        assert (code, told in said) == (254, True), said
    assert sorted(path.name for path in runs.iterdir()) == kept
    _, said = firedrill(site, runs, "doctor", "--json")
    assert told in said
    assert "mend or uninstall boom 1.0" in said


# A program of C reads address 0.
CRASHES = {
    "import ctypes\nctypes.string_at(0)\n": "SIGSEGV (boom_fault.py:2)",
    "import os\nos.kill(os.getpid(), 9)\n": "SIGKILL (boom_fault.py:2)",
    "import os\nos.kill(0, 15)\n": "SIGTERM (boom_fault.py:2)",
    # Of C: none of these can be refused.
    "import posix\nposix._exit(0)\n": "exit code 0 (boom_fault.py:2)",
    "import ctypes\nctypes.CDLL(None).exit(3)\n": "exit code 3 (boom_fault.py:2)",
    "import os\nos.execv('/bin/true', ['true'])\n": "exit code 0 (boom_fault.py:2)",
    "import os\nos.execv('/bin/sleep', ['sleep', '60'])\n": "another program in its place (boom",
    "import os, threading\nat = threading.Thread(target=os._exit, args=[0])\nat.start()\n"
    "at.join()\n": "exit code 0 (boom_fault.py",
}


@pytest.mark.parametrize(("source", "told"), CRASHES.items(), ids=CRASHES.values())
def test_a_plugin_whose_load_ends_the_process_is_named_with_its_package(
    source: str, told: str, tmp_path: Path
) -> None:
    site, runs = tmp_path / "site", tmp_path / "runs"
    install(site)
    install_fault(site, source)
    whole = " ends a process that loads it" if told.endswith(")") else ""
    told = f"fault 'boom' of package boom 1.0: {told}{whole}"

    used = [word.replace("nemesis.mix=[]", "nemesis.mix=['boom']") for word in DRILL]
    code, said = firedrill(site, runs, *used)
    assert (code, list(runs.iterdir())) == (254, []), said
    assert told in said
    _, said = firedrill(site, runs, "doctor", "--json")
    assert told in said
    # The preload of a campaign meets every plug-in.
    campaign = [*("sim", "--workload", "count", "--seeds", "1", "--set", "drive.duration_s=1"),
                *("--set", "nemesis.mix=[]", "--set", "check.min_ok=1")]  # fmt: skip
    code, said = firedrill(site, runs, *campaign)
    assert code == 0, said


def test_a_plugin_whose_import_does_not_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fault(tmp_path, "import threading\nthreading.Event().wait()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugin_trial, "LIMIT_S", 0.2)
    monkeypatch.delitem(sys.modules, "boom_fault", raising=False)
    (about,) = distributions(path=[str(tmp_path)])
    (point,) = about.entry_points

    assert plugin_trial.refusal(point.module, point.load) == "loading it takes more than 0.2 s"


def test_a_trial_that_gets_no_process_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    before = sorted(os.listdir("/proc/self/fd"))

    assert plugin_trial.refusal("boom_fault", lambda: None) == ""

    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("value", ["!!! x", "boom_fault:", ""])
def test_an_entry_point_that_names_no_module_is_named_with_its_package(
    value: str, tmp_path: Path
) -> None:
    site, runs = tmp_path / "site", tmp_path / "runs"
    install(site)
    install_fault(site, "def build():\n    return 1\n")
    points = site / "boom-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"[firedrill.faults]\nboom = {value}\n")
    expected = f"its entry point: expected package.module:factory (got {value!r})"
    told = f"fault 'boom' of package boom 1.0: {expected}"

    code, said = firedrill(site, runs, *DRILL)
    assert (code, "VALID" in said) == (0, True), said
    used = [word.replace("nemesis.mix=[]", "nemesis.mix=['boom']") for word in DRILL]
    code, said = firedrill(site, runs, *used)
    assert (code, told in said) == (254, True), said
    _, said = firedrill(site, runs, "doctor", "--json")
    assert json.dumps(told)[1:-1] in said
    done = listed(site, "faults")
    assert (done.returncode, "kill" in done.stdout, told in done.stdout) == (0, True, True), done


ENDING = "import atexit, os\natexit.register(os._exit, 0)\n"


def test_the_end_of_a_plugin_changes_no_exit_code(tmp_path: Path) -> None:
    site, runs = tmp_path / "site", tmp_path / "runs"
    install(site, checker=ENDING + CHECKER.replace("Part()", "Part(anomalies=1 / 0)"))

    code, said = firedrill(site, runs, *DRILL)
    assert (code, "ZeroDivisionError" in said) == (2, True), said
    code, said = firedrill(site, runs, "plan", *DRILL[1:-1], "--set", "no.such=1")
    assert code == 254, said


@pytest.mark.parametrize("name", ["kill", "partition"])
def test_a_plugin_of_a_built_in_name_is_refused_by_name_and_replaces_nothing(
    name: str, tmp_path: Path
) -> None:
    site, runs = tmp_path / "site", tmp_path / "runs"
    install(site)
    install_fault(site, "raise SystemExit(0)\n")
    points = site / "boom-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"[firedrill.faults]\n{name} = boom_fault:build\n")
    told = f"fault '{name}': it is built in, and boom 1.0 brings another: give that a name of its"

    used = [word.replace("nemesis.mix=[]", f"nemesis.mix=['{name}']") for word in DRILL]
    code, said = firedrill(site, runs, *used)
    assert (code, list(runs.iterdir())) == (254, []), said
    assert told in said
    _, said = firedrill(site, runs, "doctor", "--json")
    assert told in said


def test_a_doctor_that_fails_is_named_among_the_findings(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install_fault(site, "def diagnose():\n    raise SystemExit('no')\n")
    (site / "boom-1.0.dist-info" / "entry_points.txt").write_text(
        "[firedrill.doctors]\nboom = boom_fault:diagnose\n"
    )

    _, said = firedrill(site, tmp_path / "runs", "doctor", "--json")

    assert "doctor 'boom' of package boom 1.0: SystemExit: no (boom_fault.py:2)" in said
    assert "Python" in said
    assert "disk" in said


def test_what_else_is_listed_stays_beside_a_plugin_that_ends_the_process(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install_fault(site, "def build(*given):\n    raise SystemExit(5)\n")

    done = listed(site, "faults")

    assert done.returncode == 0, done.stderr
    assert "SystemExit: 5 (boom_fault.py:2)" in done.stdout
    assert "wipe" in done.stdout
