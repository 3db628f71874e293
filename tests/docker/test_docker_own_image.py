"""A plan may name an image of its own, which the daemon must have."""

from __future__ import annotations

import asyncio
from pathlib import Path

import docker
import pytest

from clusters.providers.docker.provider import build
from harness.errors import PlanError


@pytest.mark.docker
def test_an_image_that_the_daemon_does_not_have_is_refused_by_its_key(
    docker_daemon: docker.APIClient, tmp_path: Path
) -> None:
    provider = build("own-image", {"image": "firedrill-nobody-has:0"}, tmp_path)

    with pytest.raises(PlanError, match="the daemon has no image 'firedrill-nobody-has:0'") as seen:
        asyncio.run(provider.capabilities())

    assert seen.value.path == "cluster.options.image"
