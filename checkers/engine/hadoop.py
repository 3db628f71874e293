"""Files in any store that Hadoop reads (``hdfs://``, ``s3a://``, ``file://`` ...), copied by the
JVM that Spark runs in, which brings Hadoop's client along.

What lies in such a store is fetched before it is read, so that its sums are made of the very bytes
that are judged; results are put there once they are complete.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from checkers.engine import gateway
from checkers.engine.java import find_java, java_binary
from harness.errors import HarnessError, UsageError

# Classes of errors that another address would mend.
_OF_THE_ADDRESS = ("FileNotFound", "UnsupportedFileSystem", "URISyntax")
# Hadoop's own 45 attempts at a host that answers no connection, of 20 s each, are a quarter of an
# hour in silence. A number that the user's configuration has stays.
CONNECT_RETRIES = "1"
_CONNECT_RETRIES = "ipc.client.connect.max.retries.on.timeouts"
_OF_HADOOP = "core-default.xml"
# Until what a killed command has begun to put is removed: none puts one file for so long.
PARTIAL_KEPT_S = 86_400.0
_REMOTE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def is_remote(name: str) -> bool:
    """Tell whether ``name`` is an address in a store of Hadoop's, not a path of this machine."""
    return _REMOTE.match(name) is not None


@attrs.frozen
class RemoteStore:
    """Hadoop's file system of one address."""

    _java: Any
    _files: Any

    def is_directory(self, address: str) -> bool:
        """Tell whether a directory is at ``address``. Raises ``UsageError`` where nothing is."""
        with _told(address):
            found: bool = self._files.getFileStatus(self._path(address)).isDirectory()
        return found

    def entries(self, address: str) -> dict[str, bool]:
        """Return what is in the directory at ``address``, by name and sorted: whether it is a
        directory; nothing where there is none.
        """
        with _told(address):
            path = self._path(address)
            found = self._files.listStatus(path) if self._files.exists(path) else ()
            return dict(sorted((str(e.getPath().getName()), bool(e.isDirectory())) for e in found))

    def size_of(self, address: str) -> tuple[int, int]:
        """Return how many files are below ``address``, and their bytes."""
        with _told(address):
            found = self._files.getContentSummary(self._path(address))
            return int(found.getFileCount()), int(found.getLength())

    def fetch(self, address: str, target: Path) -> None:
        """Copy the file or directory at ``address`` to ``target``, which must not exist."""
        with _told(address):
            copy = self._java.org.apache.hadoop.fs.FileUtil.copy
            whole = copy(
                self._files,
                self._path(address),
                self._java.java.io.File(str(target)),
                False,
                self._files.getConf(),
            )
            if not whole:
                raise HarnessError(f"{address}: it was not fetched as a whole")
        # Hadoop's local file system leaves a sum beside each file that it writes.
        beside = [target.with_name(f".{target.name}.crc")]
        for extra in target.rglob(".*.crc") if target.is_dir() else beside:
            extra.unlink(missing_ok=True)

    def put_new(self, source: Path, address: str) -> None:
        """As ``put``. Raises ``HarnessError`` where something is at ``address`` already, or where
        not as many files and bytes arrived as ``source`` has: ``address`` stays as it was.
        """
        with _told(address):
            taken = self._files.exists(self._path(address))
        if taken:
            raise HarnessError(f"{address}: it is there already")
        # A name of its own: another may put the same at this moment.
        unfinished = f"{address}.{secrets.token_hex(8)}.partial"
        try:
            self._copy(source, unfinished)
            here, there = _size_of(source), self.size_of(unfinished)
            if there != here:
                raise HarnessError(f"{address}: {here} files and bytes were put, {there} are there")
            self._rename_new(unfinished, address)
        except BaseException:
            with suppress(Exception):  # the store may be why it failed
                self._files.delete(self._path(unfinished), True)
            raise

    def put(self, source: Path, address: str) -> None:
        """Copy the file or directory ``source`` to ``address``, in the place of what is there:
        under another name first, so that no reader finds a part of it. What was there is moved
        aside to ``ADDRESS.before``, and removed last: in a store that renames at once (HDFS) one of
        the two is there, whole, however early this ends, under ``address`` or beside it. Where a
        rename copies one object after the other (S3) an end in between may leave parts of it under
        either name; put again, it is whole.
        """
        # A name of its own: another may put the same at this moment.
        unfinished, before = f"{address}.{secrets.token_hex(8)}.partial", f"{address}.before"
        self._remove_partial(address)
        try:
            self._copy(source, unfinished)
            self._replace(unfinished, address, before)
        except BaseException:
            with suppress(Exception):  # the store may be why it failed
                self._files.delete(self._path(unfinished), True)
            raise

    def _remove_partial(self, address: str) -> None:
        """Remove what killed ones have left that put the same, and have had their time."""
        place, name = self._path(address), name_of(address)
        with _told(address):
            parent = place.getParent()
            found = self._files.listStatus(parent) if self._files.exists(parent) else ()
            for each in found:
                left = str(each.getPath().getName())
                age_s = time.time() - each.getModificationTime() / 1000
                if re.fullmatch(rf"{re.escape(name)}\.[0-9a-f]{{16}}\.partial", left) and (
                    age_s > PARTIAL_KEPT_S
                ):
                    self._files.delete(each.getPath(), True)

    def _replace(self, unfinished: str, address: str, before: str) -> None:
        with _told(address):
            replaced = self._files.exists(self._path(address))
            if replaced:
                # What an earlier one has left, whose successor is in place.
                self._files.delete(self._path(before), True)
                self._rename(address, before)
            try:
                self._rename(unfinished, address)
            except BaseException:
                with suppress(Exception):  # the store may be why it failed
                    # Into a directory that is there it would be moved.
                    if replaced and not self._files.exists(self._path(address)):
                        self._files.rename(self._path(before), self._path(address))
                raise
            self._files.delete(self._path(before), True)

    def _rename(self, old: str, new: str) -> None:
        if not self._files.rename(self._path(old), self._path(new)):
            raise HarnessError(f"{new}: {old} can't be renamed to it")

    def _copy(self, source: Path, address: str) -> None:
        with _told(address):
            here = self._path(source.absolute().as_uri())
            self._files.copyFromLocalFile(False, True, here, self._path(address))

    def _rename_new(self, unfinished: str, address: str) -> None:
        """Rename where nothing is at ``address``: ``FileSystem.rename`` would move into a directory
        that has come there meanwhile.
        """
        fs = self._java.org.apache.hadoop.fs
        with _told(address):
            context = fs.FileContext.getFileContext(
                self._java.java.net.URI(address), self._files.getConf()
            )
            kind = fs.Options.Rename
            options = _JVM.client.new_array(kind, 1)
            options[0] = kind.NONE
            context.rename(self._path(unfinished), self._path(address), options)

    def _path(self, address: str) -> Any:  # noqa: ANN401 (an object of the JVM's)
        return self._java.org.apache.hadoop.fs.Path(address)


@attrs.define
class _Jvm:
    """The JVM of this process as py4j sees it, and how many blocks need it."""

    blocks: int = 0
    port: int = 0
    client: Any = None

    def opened(self) -> Any:  # noqa: ANN401 (py4j has no types)
        from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

        # The configuration of a cluster (names of its nodes, keys of a store) is the caller's.
        with gateway.environment({}, foreign=True):
            met = gateway.gateway(lambda: java_binary(find_java()), alone=True)
        if self.client is None or self.port != met.port:  # the one before has died
            self.port = met.port
            self.client = ClientServer(
                java_parameters=JavaParameters(
                    port=met.port, auth_token=met.secret, auto_convert=True, auto_field=True
                ),
                python_parameters=PythonParameters(port=0, eager_load=False),
            )
        return self.client.jvm

    def end(self) -> None:
        if self.client is not None:
            self.client.shutdown()
            self.client = None
            gateway.close()


_JVM = _Jvm()


@contextmanager
def one_jvm() -> Iterator[None]:
    """Have the stores opened within the block share one JVM, which ends after it."""
    _JVM.blocks += 1
    try:
        yield
    finally:
        _JVM.blocks -= 1
        if not _JVM.blocks:
            _JVM.end()


@contextmanager
def remote_store(address: str) -> Iterator[RemoteStore]:
    """Open the store that ``address`` is in; its JVM ends after the block, or after that of
    ``one_jvm``.

    Raises ``HarnessError`` where there is no Java, and ``UsageError`` for an address of a kind that
    no class of Hadoop's reads.
    """
    with one_jvm():
        java = _JVM.opened()
        with _told(address):
            files = java.org.apache.hadoop.fs.FileSystem.get(
                java.java.net.URI(address), _configuration(java)
            )
        yield RemoteStore(java, files)


def _configuration(java: Any) -> Any:  # noqa: ANN401 (objects of the JVM's)
    found = java.org.apache.hadoop.conf.Configuration()
    if list(found.getPropertySources(_CONNECT_RETRIES))[-1] == _OF_HADOOP:
        found.set(_CONNECT_RETRIES, CONNECT_RETRIES)
    return found


@contextmanager
def _told(address: str) -> Iterator[None]:
    from py4j.protocol import Py4JError, Py4JJavaError

    # py4j logs what it raises, an interruption too, with all frames, and without a handler it would
    # set one up for the whole process.
    silent = logging.NullHandler()
    logging.getLogger().addHandler(silent)
    try:
        yield
    except Py4JJavaError as error:
        # The first line is the class and the reason; the rest are frames.
        said = str(error.java_exception.toString()).splitlines()[0]
        misuse = any(kind in said for kind in _OF_THE_ADDRESS)
        raise (UsageError if misuse else HarnessError)(f"{address}: {said}") from error
    except Py4JError as error:
        raise HarnessError(f"{address}: the JVM that reads it ended: {error}") from error
    finally:
        logging.getLogger().removeHandler(silent)


def name_of(address: str) -> str:
    """Return the last part of ``address``."""
    return os.path.basename(address.rstrip("/"))


def _size_of(root: Path) -> tuple[int, int]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)
