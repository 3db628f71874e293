"""The Docker daemon, with a deadline on every call and one sentence when it is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import docker
import requests.exceptions
from docker.errors import APIError, DockerException, NotFound
from docker.utils import kwargs_from_env

from harness.errors import HarnessError, UsageError

CALL_LIMIT_S = 20
CONNECTIONS = 32  # threads of all lanes of a run; requests would discard and redial above it


class NoDaemon(UsageError):
    """No Docker daemon answers here."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"no Docker daemon answers at {where} ({reason}); "
            "start one (scripts/start-docker), or choose --provider process"
        )
        self.where, self.reason = where, reason


class DaemonError(HarnessError):
    """The daemon refused a call, or did not answer it in time (``answered`` is false then: it may
    still do what it was asked for).
    """

    def __init__(self, what: str, reason: str, *, answered: bool = True) -> None:
        super().__init__(f"docker: {what}: {reason}")
        self.reason, self.answered = reason, answered


def address() -> str:
    """Where the daemon is looked for."""
    given = kwargs_from_env().get("base_url")
    return str(given) if given else "unix:///var/run/docker.sock"


def connect(limit_s: int = CALL_LIMIT_S) -> docker.APIClient:
    """A client of the daemon, safe between threads. Raises ``NoDaemon``."""
    try:
        client = docker.APIClient(
            # Asked of the daemon: it refuses a client of a newer version than its own.
            version="auto",
            timeout=limit_s,
            num_pools=CONNECTIONS,
            max_pool_size=CONNECTIONS,
            **kwargs_from_env(),
        )
        client.ping()
    except (DockerException, requests.exceptions.RequestException, ValueError) as error:
        raise NoDaemon(address(), _last_reason(error)) from error
    return client


def _last_reason(error: BaseException) -> str:
    """The innermost reason: the outer ones repeat it in other words."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(error) or type(error).__name__


@contextmanager
def doing(what: str, *, missing_is_fine: bool = False) -> Iterator[None]:
    """Turn the SDK's errors into ``DaemonError``s that name ``what``."""
    try:
        yield
    except NotFound as error:
        if not missing_is_fine:
            raise DaemonError(what, error.explanation or str(error)) from error
    except APIError as error:
        raise DaemonError(what, error.explanation or str(error)) from error
    except (DockerException, requests.exceptions.RequestException) as error:
        raise DaemonError(what, str(error), answered=False) from error
