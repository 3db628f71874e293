"""``--runs-dir`` in a store of Hadoop's: runs are driven here, moved there, listed and judged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from mini_hdfs import hdfs

from checkers.engine.spark import gateway, java
from checkers.engine.spark.hadoop import CONNECT_RETRIES, RemoteStore, remote_store
from cli.doctor import examine
from cli.main import execute
from cli.remote_runs import RemoteRuns
from harness.errors import HarnessError
from harness.history.run_directory import RunDirectory
from results.store.store import RunStore

FIREDRILL = Path(sys.executable).with_name("firedrill")
RUNS = Path(__file__).parents[1] / "evidence" / "runs"
LIMIT_S = 240
OLD, NEW = "20260101-000000-old-0001", "20260202-000000-new-0002"


def firedrill(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FIREDRILL, *words], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as address:
        yield address


@pytest.fixture
def two_runs(store: str, tmp_path: Path) -> str:
    address = f"{store}/{tmp_path.name}"
    with remote_store(store) as remote:
        for name in (OLD, NEW):
            remote.put(RUNS / "sim-valid", f"{address}/{name}")
        # What an upload that was broken off has left.
        remote.put(RUNS / "sim-valid", f"{address}/20260303-000000-half-0003.partial")
    return address


@pytest.mark.spark
def test_a_run_is_driven_here_and_moved_there(store: str, tmp_path: Path) -> None:
    there = ("--runs-dir", f"{store}/driven")

    none = firedrill("runs", *there, cwd=tmp_path)
    done = firedrill("run", "--provider", "sim", "--duration", "14", *there, cwd=tmp_path)
    listed = json.loads(firedrill("runs", "--json", *there, cwd=tmp_path).stdout)

    assert none.stdout == f"no runs in {store}/driven\n"
    assert done.returncode == 0, done.stderr
    (run,) = listed
    assert run["outcome"] == "valid"
    assert run["nodes"]
    assert run["size_bytes"] > 10_000
    assert done.stdout.splitlines()[-1].endswith(f"{store}/driven/{run['run']}/report.html")
    assert "next:" not in done.stdout
    assert [path for path in (tmp_path / "runs").iterdir() if path.is_dir()] == []


@pytest.mark.spark
def test_a_move_that_is_interrupted_says_where_the_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RemoteRuns, "move", interrupted)
    words = ("run", "--provider", "sim", "--duration", "14", "--no-report", "--executor", "local")

    code = execute([*words, "--runs-dir", f"file://{tmp_path}/there"])

    (run,) = RunStore(tmp_path / "runs").runs()
    assert code == 130
    assert f"the run is judged, and stays in runs/{run.root.name}\n" in capsys.readouterr().err
    assert run.verdict.exists()


@pytest.mark.spark
def test_runs_are_named_as_in_a_store_here(two_runs: str, tmp_path: Path) -> None:
    there = ("--runs-dir", two_runs)

    rows = firedrill("runs", "--sort", "run", *there, cwd=tmp_path).stdout.splitlines()
    assert [row.split()[0] for row in rows[1:-1]] == [OLD, NEW]
    checked = firedrill("check", OLD[:10], "latest", "--executor", "local", *there, cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    shown = [line for line in checked.stdout.splitlines() if line.startswith("VALID")]
    assert [line.split("/")[-2] for line in shown] == [OLD, NEW]
    assert "2 judged: 2 valid" in checked.stdout
    drawn = firedrill("report", NEW, *there, cwd=tmp_path)
    assert drawn.stdout == f"{two_runs}/{NEW}/report.html\n", drawn.stderr
    again = firedrill("report", f"{two_runs}/{OLD}/", cwd=tmp_path)
    assert again.stdout == f"{two_runs}/{OLD}/report.html\n", again.stderr
    with remote_store(two_runs) as remote:
        for name in (OLD, NEW):
            assert "report.html" in remote.entries(f"{two_runs}/{name}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_a_name_that_means_no_run_lets_the_others_go_on(two_runs: str, tmp_path: Path) -> None:
    done = firedrill(
        *("check", "nosuch", OLD, "--executor", "local", "--runs-dir", two_runs), cwd=tmp_path
    )

    assert done.returncode == 254, done.stderr
    assert "2 judged: 1 valid, 1 refused" in done.stdout


@pytest.mark.spark
@pytest.mark.parametrize("name", ["nosuch", "2026"])
def test_a_name_that_means_no_run_there_is_misuse(two_runs: str, tmp_path: Path, name: str) -> None:
    done = firedrill("check", name, "--runs-dir", two_runs, cwd=tmp_path)

    assert done.returncode == 254, done.stderr
    assert two_runs in done.stderr
    assert NEW in done.stderr
    assert "half" not in done.stderr
    assert "firedrill-runs" not in done.stderr  # the name of its scratch


@pytest.mark.spark
def test_a_second_run_of_a_name_replaces_none(two_runs: str, tmp_path: Path) -> None:
    shutil.copytree(RUNS / "sim-valid", tmp_path / NEW)
    (tmp_path / NEW / "more").touch()

    with pytest.raises(HarnessError, match=f"{NEW}: it is there already"):
        RemoteRuns(two_runs).move(RunDirectory(tmp_path / NEW))

    assert (tmp_path / NEW / "more").exists()
    with remote_store(two_runs) as remote:
        assert "more" not in remote.entries(f"{two_runs}/{NEW}")


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["hdfs", "file"])
def test_a_run_that_came_there_meanwhile_stays(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    there = f"{store}/{tmp_path.name}" if kind == "hdfs" else f"file://{tmp_path}/there"
    run = RunDirectory(tmp_path / NEW)
    shutil.copytree(RUNS / "sim-valid", run.root)
    (run.root / "mine").touch()
    copy = RemoteStore._copy

    def late(remote: RemoteStore, source: Path, address: str) -> None:
        copy(remote, source, address)
        copy(remote, RUNS / "sim-valid", f"{there}/{NEW}")

    monkeypatch.setattr(RemoteStore, "_copy", late)

    with pytest.raises(HarnessError, match=f"{there}/{NEW}"):
        RemoteRuns(there).move(run)

    assert run.manifest.exists()
    with remote_store(there) as remote:
        assert list(remote.entries(there)) == [NEW]  # and nothing unfinished
        assert not {"mine", NEW} & set(remote.entries(f"{there}/{NEW}"))


@pytest.mark.spark
def test_a_run_that_did_not_arrive_whole_is_never_listed(
    two_runs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "20260404-000000-torn-0004")
    shutil.copytree(RUNS / "sim-valid", run.root)

    with monkeypatch.context() as torn:
        torn.setattr(RemoteStore, "size_of", lambda *_: (1, 10))
        with pytest.raises(HarnessError, match=r"\(1, 10\) are there"):
            RemoteRuns(two_runs).move(run)
    with RemoteRuns(two_runs).listed() as (listed, _):
        assert [each.root.name for each in listed.runs()] == [OLD, NEW]
    assert run.manifest.exists()

    # The next attempt is not misled by what the first has left.
    RemoteRuns(two_runs).move(run)
    with RemoteRuns(two_runs).listed() as (listed, _):
        assert [each.root.name for each in listed.runs()] == [OLD, NEW, run.root.name]
    assert not run.root.exists()


@pytest.mark.spark
def test_a_run_that_stayed_here_is_moved_afterwards(store: str, tmp_path: Path) -> None:
    there = f"{store}/{tmp_path.name}"
    for name in (OLD, NEW):
        shutil.copytree(RUNS / "sim-valid", tmp_path / "runs" / name)

    shutil.copytree(RUNS / "sim-valid", tmp_path / "mine")
    own = firedrill("runs", "move", "latest", "mine", "--to", there, cwd=tmp_path)
    words = ("latest", OLD[:12], NEW)
    done = firedrill("runs", "move", *words, "--to", f"{there}/", cwd=tmp_path)
    again = firedrill("runs", "move", "latest", "--to", there, cwd=tmp_path)

    assert (own.returncode, own.stdout) == (254, "")
    assert "run mine can't be moved: a store there lists identifiers" in own.stderr
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{there}/{NEW}", f"{there}/{OLD}"]
    assert RunStore(tmp_path / "runs").runs() == ()
    with RemoteRuns(there).listed() as (listed, _):
        assert [each.root.name for each in listed.runs()] == [OLD, NEW]
    assert again.returncode == 254
    assert "runs holds no runs" in again.stderr


@pytest.mark.spark
def test_a_run_is_not_moved_before_it_is_sealed_nor_within_this_machine(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs" / NEW)
    shutil.copytree(RUNS / "sim-valid", run.root)

    here = firedrill("runs", "move", NEW, "--to", str(tmp_path / "there"), cwd=tmp_path)
    run.history.rename(run.root / "elsewhere")
    unsealed = firedrill("runs", "move", NEW, "--to", f"file://{tmp_path}/there", cwd=tmp_path)

    assert (here.returncode, unsealed.returncode) == (254, 254)
    assert "expected an address" in here.stderr
    assert f"it is not sealed: 'firedrill check runs/{NEW}'" in unsealed.stderr
    assert run.manifest.exists()
    assert not (tmp_path / "there").exists()


@pytest.mark.spark
@pytest.mark.parametrize("words", [("check", OLD, "latest", "--executor", "local"), ("report",)])
def test_a_command_starts_one_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    for name in (OLD, NEW):
        shutil.copytree(RUNS / "sim-valid", tmp_path / "there" / name)
    monkeypatch.chdir(tmp_path)
    started: list[object] = []
    start = gateway._start

    def counted(java: Path, alone: bool) -> object:
        started.append(found := start(java, alone))
        return found

    monkeypatch.setattr(gateway, "_start", counted)

    assert execute([*words, "--runs-dir", f"file://{tmp_path}/there"]) == 0

    assert len(started) == 1
    assert gateway._running == []


@pytest.mark.spark
@pytest.mark.parametrize(
    ("address", "code", "told"),
    [("nosuch://x/runs", 254, "nosuch"), ("hdfs://127.0.0.1:1/runs", 255, "refused")],
)
def test_a_store_that_is_not_reached_is_told_before_the_drive(
    tmp_path: Path, address: str, code: int, told: str
) -> None:
    done = firedrill("run", "--provider", "sim", "--runs-dir", address, cwd=tmp_path)

    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_doctor_says_whether_the_store_answers(store: str, tmp_path: Path) -> None:
    found = {}
    for address in (f"{store}/none-yet", "hdfs://127.0.0.1:1/runs"):
        done = firedrill("doctor", "--json", "--runs-dir", address, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        rows = {row["name"]: row for row in json.loads(done.stdout)["findings"]}
        assert rows["disk"]["found"].endswith("free for runs")
        found[rows["runs"]["ok"]] = rows["runs"]["found"]

    assert found[True] == f"{store}/none-yet answers"
    assert "Connection refused" in found[False]
    assert list(tmp_path.iterdir()) == []


def test_doctor_asks_for_java_where_a_store_is_asked_by_way_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(java, "_candidates", lambda: [])

    rows, _ = examine(RemoteRuns("hdfs://host/runs"))

    (runs,) = (row for row in rows if row.name == "runs")
    assert not runs.ok
    assert "by way of Java, which is missing" in runs.found
    assert runs.remedy == "apt-get install openjdk-17-jre-headless"


@contextmanager
def no_answer() -> Iterator[int]:
    """Yield a port of the loopback that neither takes nor refuses connections, as a host that is
    gone: its queue is full.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as queue:
        port = full.getsockname()[1]
        for _ in range(4):
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(("127.0.0.1", port))
        yield port


@pytest.mark.spark
def test_a_name_node_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    # Hadoop's own number of attempts takes more than twice the limit.
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>ipc.client.connect.timeout</name><value>6000</value>"
        "</property></configuration>"
    )
    with no_answer() as port:
        done = subprocess.run(
            [FIREDRILL, "runs", "--runs-dir", f"hdfs://127.0.0.1:{port}/runs"],
            env={**os.environ, "HADOOP_CONF_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    assert done.returncode == 255, done.stderr
    assert f"hdfs://127.0.0.1:{port}/runs: " in done.stderr
    assert "6000 millis timeout" in done.stderr


@pytest.mark.spark
def test_a_store_that_is_silent_can_be_interrupted(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LIMIT_S)
        asking = subprocess.Popen(
            [FIREDRILL, "runs", "--runs-dir", f"hdfs://127.0.0.1:{silent.getsockname()[1]}/runs"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        with silent.accept()[0]:
            asking.send_signal(signal.SIGINT)
            _, told = asking.communicate(timeout=LIMIT_S)

    assert (asking.returncode, told.strip()) == (130, "firedrill: interrupted")


@pytest.mark.spark
@pytest.mark.parametrize(("configured", "used"), [("45", "45"), (None, CONNECT_RETRIES)])
def test_a_number_of_attempts_of_the_users_own_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: str | None, used: str
) -> None:
    name = "ipc.client.connect.max.retries.on.timeouts"
    value = f"<property><name>{name}</name><value>{configured}</value></property>"
    told = value if configured else ""
    (tmp_path / "core-site.xml").write_text(f"<configuration>{told}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))

    with remote_store(f"file://{tmp_path}") as store:
        assert store._files.getConf().get(name) == used


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "--repeat", "2"), "expected one run, which is moved there"),
        (("run", "--modes", "sc,ha"), "expected one run, which is moved there"),
        (("check", "plan.toml"), "for what lies on this machine"),
        (("runs", "tag", "latest"), "which 'run', 'runs', 'check', 'report' and 'doctor' take"),
        (("serve",), "which 'run', 'runs', 'check', 'report' and 'doctor' take"),
    ],
)
def test_what_takes_no_store_elsewhere_says_so(
    tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    (tmp_path / "plan.toml").touch()

    done = firedrill(*words, "--runs-dir", "hdfs://host/runs", cwd=tmp_path)

    assert done.returncode == 254, done.stderr
    assert told in " ".join(done.stderr.split())
