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

from checkers.engine.spark import gateway
from checkers.engine.spark.java import find_java, java_binary
from harness.errors import HarnessError, UsageError

# Classes of errors that another address would mend.
_OF_THE_ADDRESS = ("FileNotFound", "UnsupportedFileSystem", "URISyntax")
# Hadoop's own 45 attempts at a host that answers no connection, of 20 s each, are a quarter of an
# hour in silence. A number that the user's configuration has stays.
CONNECT_RETRIES = "1"
_CONNECT_RETRIES = "ipc.client.connect.max.retries.on.timeouts"
_OF_HADOOP = "core-default.xml"
# Until what a killed command has left of a put is removed: none takes so long.
LEFT_KEPT_S = 86_400.0
PUT_TRIES = 20
# What a rename comes to where another one was faster.
_OF_OTHERS = ("FileNotFound", "FileAlreadyExists")
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
        aside to ``ADDRESS.TOKEN.before``, and removed last: in a store that renames at once (HDFS)
        one of the two is there, whole, however early this ends, under ``address`` or beside it. Of
        several at the same time one stays, whole. Where a rename copies one object after the other
        (S3) an end in between may leave parts of it under either name; put again, it is whole.
        """
        # Names of its own: another may put the same at this moment. They tell when that was.
        token = f"{int(time.time()):08x}{secrets.token_hex(4)}"
        unfinished, before = (f"{address}.{token}.{end}" for end in ("partial", "before"))
        try:
            self._copy(source, unfinished)
            for _ in range(PUT_TRIES):
                if self._placed(unfinished, address, before):
                    break
            else:
                raise HarnessError(f"{address}: others put there again and again")
        except BaseException:
            with suppress(Exception):  # the store may be why it failed
                self._files.delete(self._path(unfinished), True)
            raise
        # Only now: until it is replaced, it may be the only one there is.
        self._remove_left(address)

    def _placed(self, unfinished: str, address: str, before: str) -> bool:
        """Rename ``unfinished`` to ``address``, what is there to ``before``, and remove that;
        whether no other came between the two.
        """
        aside = self._exists(address)
        try:
            if aside:
                self._rename_new(address, before)
            self._rename_new(unfinished, address)
        except BaseException as error:
            with suppress(Exception):  # the store may be why it failed
                if self._exists(address):
                    self._files.delete(self._path(before), True)
                elif aside:
                    self._rename_new(before, address)
            # Another has moved aside what was there, or has put its own.
            others = isinstance(error, HarnessError | UsageError)
            if others and any(kind in str(error) for kind in _OF_OTHERS):
                return False
            raise
        with _told(address):
            self._files.delete(self._path(before), True)
        return True

    def _remove_left(self, address: str) -> None:
        """Remove what killed ones have left that put the same, and have had their time."""
        place = self._path(address)
        ours = re.compile(rf"{re.escape(name_of(address))}\.([0-9a-f]{{8}})[0-9a-f]{{8}}\.\w+")
        with _told(address):
            for each in self._files.listStatus(place.getParent()):
                left = ours.fullmatch(str(each.getPath().getName()))
                if left and time.time() - int(left[1], 16) > LEFT_KEPT_S:
                    self._files.delete(each.getPath(), True)

    def _exists(self, address: str) -> bool:
        with _told(address):
            return bool(self._files.exists(self._path(address)))

    def _copy(self, source: Path, address: str) -> None:
        with _told(address):
            here = self._path(source.absolute().as_uri())
            self._files.copyFromLocalFile(False, True, here, self._path(address))

    def _rename_new(self, old: str, new: str) -> None:
        """Rename where nothing is at ``new``: ``FileSystem.rename`` would move into a directory
        that has come there meanwhile.
        """
        fs = self._java.org.apache.hadoop.fs
        with _told(new):
            context = fs.FileContext.getFileContext(self._path(new).toUri(), self._files.getConf())
            kind = fs.Options.Rename
            options = _JVM.client.new_array(kind, 1)
            options[0] = kind.NONE
            context.rename(self._path(old), self._path(new), options)

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

        if (java := find_java()).home is None:
            raise HarnessError(f"addresses are read by way of Java: {java.reason}")
        # The configuration of a cluster (names of its nodes, keys of a store) is the caller's.
        with gateway.environment({}, foreign=True):
            met = gateway.gateway(lambda: java_binary(java), alone=True)
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
            # Not ``java.net.URI``, which takes no blank.
            path = java.org.apache.hadoop.fs.Path(address)
            files = java.org.apache.hadoop.fs.FileSystem.get(path.toUri(), _configuration(java))
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
    # What its sockets say by themselves, py4j does not wrap.
    except (Py4JError, OSError) as error:
        raise HarnessError(f"{address}: the JVM that reads it ended: {error}") from error
    finally:
        logging.getLogger().removeHandler(silent)


def name_of(address: str) -> str:
    """Return the last part of ``address``."""
    return os.path.basename(address.rstrip("/"))


def _size_of(root: Path) -> tuple[int, int]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)
