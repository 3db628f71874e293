"""The example of ``docs/your-own-store.md`` as its reader would use it: installed, found by name,
checked and drilled from the command line.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conform_kit import EXAMPLE
from example_kit import ROOT, firedrill, installed_into

from harness import api, protocols
from harness.conform.suite import SUITE
from harness.protocols.claims import JudgesClaims
from harness.protocols.cluster import System
from harness.protocols.coverage import RecordsCoverage
from harness.protocols.crash_points import ChoosesMessages, CrashesAtPoints
from harness.protocols.faults import (
    AimsAtSpares,
    ChecksSystem,
    EndsByItself,
    HasOptions,
    WaitsForPoint,
)
from harness.protocols.hardware import Hardware, Wipes
from harness.protocols.moments import WatchesMoments
from harness.protocols.replica_states import TellsStates
from harness.protocols.resource_usage import TellsUsage

# Of providers and of faults.
NOT_AN_ADAPTERS = (
    *(Hardware, JudgesClaims, WatchesMoments, CrashesAtPoints, ChoosesMessages),
    *(HasOptions, WaitsForPoint, AimsAtSpares, RecordsCoverage, ChecksSystem),
    *(Wipes, TellsUsage, EndsByItself),
)
GUIDE = ROOT / "docs" / "your-own-store.md"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the example's package is installed."""
    return installed_into(tmp_path_factory.mktemp("installed"), EXAMPLE)


@pytest.mark.slow
def test_an_installed_store_is_found_by_its_name_and_conforms(
    installed: dict[str, str], tmp_path: Path
) -> None:
    checks = ("options", "program", "serves", "kill bites", "recover", "events", "codes")
    chosen = [word for name in checks for word in ("--check", name)]
    words = ("conform", "pebble", "--provider", "process", "--nodes", "2", *chosen)

    code, said = firedrill(installed, tmp_path, *words)

    assert code == 0, said
    assert "CONFORMS: pebble: 7 of 7 checks hold" in said
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.slow
def test_an_installed_store_is_drilled_like_any_other(
    installed: dict[str, str], tmp_path: Path
) -> None:
    words = ("run", "--system", "pebble", "--provider", "process", "--nodes", "2")
    drive = ("--duration", "8", "--executor", "local", "--schedule", "2:kill:n1:2")
    # How much it serves is the machine's: with many tests beside it a busy one has fewer than 100.
    drive += ("--set", "check.min_ok=20")

    code, said = firedrill(installed, tmp_path, *words, *drive, "--no-report")

    assert code == 0, said
    assert "VALID" in said


def careless(tmp_path: Path, more: str = "") -> tuple[dict[str, str], Path]:
    """The environment and the store of runs of an adapter with a mistake, or ``more`` of them."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "careless.py").write_text(
        "from pebble.adapter import Pebble\n"
        "class Careless(Pebble):\n"
        "    name = 'careless'\n"
        f"{more}"
        "def build(options, nodes, seed):\n"
        "    return Careless()\n"
    )
    info = package / "careless-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: careless\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[firedrill.systems]\ncareless = careless:build\n")
    runs = tmp_path / "runs"
    runs.mkdir()
    return {**os.environ, "PYTHONPATH": f"{package}:{EXAMPLE}"}, runs


def test_an_adapter_with_a_mistake_leaves_the_results_and_the_logs(tmp_path: Path) -> None:
    environment, runs = careless(tmp_path)
    words = ("conform", "careless", "--provider", "process", "--nodes", "1")

    code, said = firedrill(environment, runs, *words, "--check", "options", "--check", "serves")

    assert code == 1, said
    assert re.search(r"^options +BROKEN +option 'no_such_option' was taken", said, re.MULTILINE)
    assert "DOES NOT CONFORM: careless: 1 of 2 checks hold, 1 do not" in said
    (kept,) = [path for path in runs.iterdir() if path.is_dir() and not path.is_symlink()]
    assert (kept / "conform.json").is_file()
    assert (kept / "nodes" / "n1" / "node.log").is_file()


def test_an_adapter_that_ends_the_process_does_not_conform(tmp_path: Path) -> None:
    leaves = "    async def connect(self, *given):\n        __import__('os')._exit(0)\n"
    environment, runs = careless(tmp_path, leaves)
    words = ("conform", "careless", "--provider", "process", "--nodes", "1")

    code, said = firedrill(environment, runs, *words, "--check", "serves")

    assert code == 1, said
    assert "at connect (ProcessExit: os._exit(0))" in said
    assert "DOES NOT CONFORM: careless: 0 of 1 checks hold" in said


def test_the_guide_names_every_check_and_every_method_that_an_adapter_has() -> None:
    text = GUIDE.read_text()

    missing = [name for name in public(System) if f"`{name}" not in text]
    missing += [check.name for check in SUITE if f"`{check.name}`" not in text]
    assert missing == []


def test_the_guide_names_whatever_the_harness_looks_for_in_a_system_or_its_clients() -> None:
    text, looked_for = GUIDE.read_text(), dict(optional())

    assert TellsStates in looked_for.values()
    assert [path for path in looked_for if f"`{path}`" not in text] == []
    told = [name for protocol in looked_for.values() for name in public(protocol)]
    assert [name for name in told if f"`{name}" not in text] == []


def public(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]


def optional() -> Iterator[tuple[str, type]]:
    """Every protocol of the harness that something may have or not, by its path; those of what a
    provider does to machines, and of faults, are none of an adapter's.
    """
    for found in pkgutil.iter_modules(protocols.__path__, "harness.protocols."):
        for name, value in vars(importlib.import_module(found.name)).items():
            if (
                getattr(value, "_is_runtime_protocol", False)
                and value.__module__ == found.name
                and value not in NOT_AN_ADAPTERS
            ):
                assert getattr(api, name) is value, f"harness.api lacks {name}"
                yield f"harness.api.{name}", value
