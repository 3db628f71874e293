"""A simulated campaign says which markers of the nodes it reached."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusters.reference.marker_index import known_markers
from harness.campaigns.marker_counts import load_must_reach

FIREDRILL = Path(sys.executable).with_name("firedrill")


def sim(store: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    small = ["--seeds", "1", "--seed", "7", "--faults", "kill", "--workload", "list-append"]
    short = ["--set", "drive.duration_s=12", "--set", "cluster.nodes=3", "--set", "check.min_ok=20"]
    return subprocess.run(
        [FIREDRILL, "sim", *small, *short, *flags, "--runs-dir", store],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("campaign")


def listed(tmp_path: Path, *markers: str, seeds: int = 1) -> Path:
    path = tmp_path / "must-reach"
    path.write_text("\n".join((f"# seeds: {seeds}", *markers, "")))
    return path


def test_what_the_seeds_reached_is_told_and_what_they_never_did(store: Path) -> None:
    done = sim(store)

    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("markers: ")]
    reached, known = told[0].removeprefix("markers: ").removesuffix(" reached").split(" of ")
    assert int(known) == len(known_markers())
    assert 20 <= int(reached) < int(known)
    never = next(x for x in done.stdout.splitlines() if x.startswith("never reached: "))
    assert "too many requests in flight" in never
    assert "vote granted" not in never


def test_a_campaign_that_does_not_reach_what_it_must_has_failed(
    store: Path, tmp_path: Path
) -> None:
    """The seed is known from the campaign before, with its markers: nothing is simulated again."""
    lacking = sim(
        store, "--must-reach", str(listed(tmp_path, "vote granted", "proposal too large"))
    )
    assert lacking.returncode == 255, lacking.stdout
    assert "MUST BE REACHED, and was not: proposal too large (groups/host.py:" in lacking.stdout
    assert "not: vote granted" not in lacking.stdout

    kept = sim(store, "--must-reach", str(listed(tmp_path, "vote granted")))
    assert kept.returncode == 0, kept.stdout


def test_fewer_seeds_than_a_list_is_for_are_not_held_to_it(store: Path, tmp_path: Path) -> None:
    path = listed(tmp_path, "proposal too large", seeds=2)

    done = sim(store, "--must-reach", str(path))

    assert done.returncode == 0, done.stdout
    assert "1 seeds are too few to ask for markers: 2 would do" in done.stdout


def test_a_list_of_markers_that_the_node_lacks_is_refused(store: Path, tmp_path: Path) -> None:
    done = sim(store, "--must-reach", str(listed(tmp_path, "no such thing")))

    assert done.returncode == 254
    assert "the node has no marker 'no such thing'" in done.stderr


def test_what_ci_asks_for_is_a_list_of_markers_that_the_node_has() -> None:
    path = Path(__file__).resolve().parents[2] / ".ci" / "must-reach"

    must = load_must_reach(path, known_markers())

    assert len(must.markers) >= 15
    assert 0 < must.seeds <= 40  # more than CI has time for would never be asked
