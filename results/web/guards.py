"""What every answer of the web view keeps to: this machine asks, nothing can be changed, and the
browser is told to run and load nothing but our own.

A page of another site can make a browser ask this address. It is not let to read an answer: the
``Host`` header has to name the loopback (a name that was bound to it anew, as in DNS rebinding,
does not), and no answer allows another origin anything.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAMES = ("127.0.0.1", "localhost", "[::1]")
METHODS = ("GET", "HEAD")
MAX_TARGET_BYTES = 8192
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
# A report may come from elsewhere. It has an origin of its own, and reaches nothing.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_ALWAYS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Answers what it refuses by itself, and adds headers to all else; ``port`` is the one that is
    listened on.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = frozenset(f"{name}:{port}" for name in NAMES) | (
            frozenset(NAMES) if port == 80 else frozenset()
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        if scope["type"] != "http":
            return PlainTextResponse("expected HTTP\n", 400)
        headers = Headers(scope=scope)
        if headers.getlist("host") not in ([host] for host in self._hosts):
            return PlainTextResponse("this is served to its own machine alone\n", 421)
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and (
            headers.get("sec-fetch-mode") != "navigate"
        ):
            return PlainTextResponse("another site asked\n", 403)
        if scope["method"] not in METHODS:
            return PlainTextResponse("nothing can be changed here\n", 405)
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            return PlainTextResponse("the address is too long\n", 414)
        return None
