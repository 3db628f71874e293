"""``firedrill serve``: the runs, campaigns and findings of a store in a browser, read-only."""

from __future__ import annotations

import socket

import click

from cli.session import runs_option, say
from cli.signals import on_signals
from harness.errors import UsageError
from results.store.store import RunStore

HOST = "127.0.0.1"
PORT = 8765
AT_ONCE = 32  # connections; a browser takes six
KEEP_ALIVE_S = 5
END_S = 3  # for answers that are under way when it ends


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="To listen on; 0 takes a free one.",
)
@runs_option
def serve(port: int, store: RunStore) -> int:
    """Show the store in a browser: runs with search, sort and filter, campaigns, findings.

    Nothing can be changed. It listens on this machine's loopback alone, until Ctrl-C ends it.
    """
    import uvicorn

    from results.web.app import application
    from results.web.store_view import Catalog

    catalog = Catalog(store=store)
    with _listening(port) as listener:
        port = listener.getsockname()[1]
        say(f"reading the runs of {store.root}")
        catalog.load()
        config = uvicorn.Config(
            application(catalog, port),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="off",
            limit_concurrency=AT_ONCE,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=END_S,
        )
        server = uvicorn.Server(config)

        def end() -> None:
            server.should_exit = True  # it looks each tenth of a second

        # An exception would be raised anywhere in its loop, where libraries may swallow it. It has
        # handlers of its own for two of the signals, and raises them once more at its end.
        with on_signals(end):
            click.echo(f"http://{HOST}:{port}/")
            server.run(sockets=[listener])
    return 0


def _listening(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(AT_ONCE)
    except OSError as error:
        listener.close()
        expected = "expected one that is free: --port 0 takes any"
        raise UsageError(f"--port {port}: {expected} ({error.strerror})") from error
    return listener
