"""What the base image holds, as data; the tag follows from it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

SUITE = "bookworm"
PARENT = f"debian:{SUITE}-slim"
PACKAGES = (
    "iproute2",
    "iptables",
    "nftables",
    "openssh-server",
    "procps",
    "python3",
    "tini",
)
# Runs inside the new root: sshd wants its directory; host keys come from the controller, per run.
FINISH = (
    "mkdir -p /run/sshd /etc/firedrill /opt/firedrill /var/lib/firedrill"
    " && rm -rf /etc/ssh/ssh_host_* /var/lib/apt/lists/* /var/cache/apt/archives/*.deb"
    " /var/cache/apt/*.bin /usr/share/doc /usr/share/man"
)
REPOSITORY = "firedrill-base"
DEFAULT_MIRROR = "http://deb.debian.org/debian"
APT_LISTS = ("/etc/apt/sources.list", "/etc/apt/sources.list.d")


def tag() -> str:
    """The base image's name; another recipe, another name."""
    recipe = "\n".join([SUITE, *PACKAGES, FINISH])
    return f"{REPOSITORY}:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def dockerfile(parent: str) -> str:
    """The recipe on top of ``parent``, which ``PARENT`` leads to, by its digest or id."""
    packages = " ".join(PACKAGES)
    return (
        f"FROM {parent}\n"
        "RUN apt-get update -qq"
        " && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends"
        f" {packages}"
        f" && {FINISH}\n"
    )


def mirror_of(sources: Iterable[str]) -> str:
    """The first Debian archive in apt's own lists (both formats); Debian's default without one."""
    for text in sources:
        for line in text.splitlines():
            if line.lstrip().startswith("#"):
                continue
            found = re.search(r"https?://[^\s\]]+/debian/?(?=\s|$)", line)
            if found:
                return found.group().rstrip("/")
    return DEFAULT_MIRROR


def host_mirror(places: Iterable[str] = APT_LISTS) -> str:
    """The Debian archive that this host installs from, or Debian's default."""
    texts = []
    for place in map(Path, places):
        files = sorted(place.iterdir()) if place.is_dir() else [place]
        texts += [
            f.read_text(errors="replace")
            for f in files
            if f.suffix in (".list", ".sources") and f.is_file()
        ]
    return mirror_of(texts)
