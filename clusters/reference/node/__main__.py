"""``python3 -m clusters.reference.node --config FILE``: run one node until SIGTERM.

Exit codes: 0 stopped when told to, 2 the configuration is wrong, 3 the directory or the log can't
be used, 4 a port can't be had, 1 anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import resource
import signal
import sys
from pathlib import Path

from clusters.reference.node.config import Config, ConfigError, loads
from clusters.reference.node.raft import InvariantBroken
from clusters.reference.node.runtime import DiskError
from clusters.reference.node.runtime.real import RealRuntime
from clusters.reference.node.server import Node
from clusters.reference.node.storage.log_records import CorruptLog
from clusters.reference.node.topology.bootstrap import NodeFailure

EXIT_FAILURE, EXIT_CONFIG, EXIT_STORAGE, EXIT_PORT = 1, 2, 3, 4

GC_THRESHOLDS = 20_000, 20, 20

log = logging.getLogger("node")


def main() -> int:
    """Parse, run, and turn an error into one line and an exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m clusters.reference.node")
    parser.add_argument("--config", required=True, type=Path, help="a JSON configuration")
    path = parser.parse_args().config
    logging.basicConfig(
        stream=sys.stdout,
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    try:
        config = loads(path.read_bytes())
    except OSError as error:
        return _refuse(EXIT_CONFIG, f"{path}: {error.strerror}")
    except ConfigError as error:
        return _refuse(EXIT_CONFIG, f"{path}: {error}")
    return _run(config)


def _run(config: Config) -> int:
    _allow_files()
    try:
        asyncio.run(_live(config))
    except (CorruptLog, DiskError) as error:
        return _refuse(EXIT_STORAGE, str(error))
    except OSError as error:
        return _refuse(EXIT_PORT, f"cannot listen: {error}")
    except (NodeFailure, InvariantBroken) as error:
        return _refuse(EXIT_FAILURE, str(error))
    return 0


def _allow_files() -> None:
    """As many open files as this process may have: every client is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _live(config: Config) -> None:
    runtime = RealRuntime(Path(config.data_dir))
    life = asyncio.ensure_future(Node(config, runtime).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, life.cancel)
    # Start-up objects live as long as the node: keep the collector from walking them. What a
    # transaction makes is freed without it, so it may come rarely: its pauses are felt.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        await life
    except asyncio.CancelledError:
        log.info("stopped when told to")
    finally:
        runtime.close()


def _refuse(code: int, reason: str) -> int:
    print(f"node: {reason}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
