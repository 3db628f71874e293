"""A packed environment is of the code that judges here."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from checkers.engine.spark import packed_environment
from harness.errors import UsageError


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the distributions, which take seconds to pack."""
    monkeypatch.setattr(packed_environment, "DISTRIBUTIONS", ("attrs",))


def names(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        return archive.getnames()


@pytest.mark.usefixtures("small")
def test_what_was_packed_of_other_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "env.tar.gz"
    assert packed_environment.as_archive(path) == packed_environment.as_archive(path) == path

    code = packed_environment._code

    def changed() -> Iterator[tuple[str, Path]]:
        yield from code()
        yield "checkers/more.py", Path(__file__)

    monkeypatch.setattr(packed_environment, "_code", changed)
    with pytest.raises(UsageError, match="found another: remove it, to pack it anew"):
        packed_environment.as_archive(path)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_what_does_not_tell_its_version_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "env.tar.gz"
    if content is None:
        with tarfile.open(path, "w:gz") as archive:
            archive.add(__file__, arcname="checkers/engine/work.py")
    else:
        path.write_bytes(content)

    with pytest.raises(UsageError, match="found another"):
        packed_environment.as_archive(path)


@pytest.mark.usefixtures("small")
def test_checkers_of_other_packages_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tallying").mkdir()
    for file in ("tallying/__init__.py", "tallying/kernels.py", "counted.py"):
        (tmp_path / file).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    brought = [
        EntryPoint(name=name, value=value, group="firedrill.checkers")
        for name, value in (
            ("a", "tallying.kernels:CHECKER"),
            ("b", "counted:CHECKER"),
            ("c", "gone:CHECKER"),
            ("d", "checkers.lists.checker:CHECKER"),
        )
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: brought)
    path = tmp_path / "env.tar.gz"
    packed_environment.pack(path)

    found = names(path)
    assert found[0] == packed_environment.DIGEST
    assert {"tallying/__init__.py", "tallying/kernels.py", "counted.py"} <= set(found)
    assert "checkers/engine/work.py" in found
    assert not any(name.startswith("gone") for name in found)
