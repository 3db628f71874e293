"""Removing what a run made, by whoever does it: its teardown, its reaper, or a person."""

from __future__ import annotations

import contextlib
import time

import docker
from docker.errors import APIError

from clusters.providers.docker.daemon import doing

LEAVING_LIMIT_S = 4.0  # a container made at the moment of teardown is removed by its maker


def remove_container(client: docker.APIClient, name: str) -> None:
    """Kill and remove a container and its anonymous volumes; fine if it is gone or going.

    A frozen one is thawed first: under control groups version 1 what is frozen can't die, and a
    daemon that loses hold of it meanwhile can do nothing with it any more, for good.
    """
    with doing(f"removing container {name}", missing_is_fine=True):
        if client.inspect_container(name)["State"]["Paused"]:
            with contextlib.suppress(APIError):  # it was thawed meanwhile, or went
                client.unpause(name)
        try:
            client.remove_container(name, v=True, force=True)
        except APIError as error:
            if "already in progress" not in (error.explanation or ""):
                raise


def remove_network(client: docker.APIClient, name: str) -> None:
    """Remove a network; fine if it is gone. Waits a little for the last container to leave it."""
    ends = time.monotonic() + LEAVING_LIMIT_S
    with doing(f"removing network {name}", missing_is_fine=True):
        while True:
            try:
                client.remove_network(name)
            except APIError as error:
                busy = "active endpoints" in (error.explanation or "")
                if not busy or time.monotonic() > ends:
                    raise
            else:
                return
            time.sleep(0.1)
