"""The page of `proxrl report`, live on this machine: it answers 127.0.0.1 alone, and only reads."""

import contextlib
import errno
import gzip
import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from proxrl.errors import ProxRLError
from proxrl.report.page import filled, page_file, script
from proxrl.report.page_data import VIDEO_TYPES, PageRun, document, videos_of
from proxrl.runs.folder import RUNS_DIR, RunFolder
from proxrl.runs.lookup import find_folder, runs_below

HOST, FIRST_PORT, PORTS = "127.0.0.1", 8265, 50
# How often new runs are looked for, however many pages ask.
SECONDS_BETWEEN_SEARCHES = 2.0
# A page of another origin whose name was bent to this machine would still send its own name.
OWN_NAMES = {"127.0.0.1", "localhost"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; media-src 'self';"
        " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


class Watched:
    """The runs at or below some folders, for all threads of the server."""

    def __init__(self, places: Sequence[str | Path], runs_dir: str | Path = RUNS_DIR) -> None:
        self.folders = [find_folder(place, runs_dir) for place in places]
        self._runs: dict[Path, PageRun] = {}
        self._searched_at = -SECONDS_BETWEEN_SEARCHES
        self._lock = threading.Lock()

    def index(self) -> dict[str, Any]:
        """The document without details, which pages ask for as runs change."""
        with self._lock:
            return document(self._found(), live=True)

    def details(self, run_id: str) -> dict[str, Any] | None:
        with self._lock:
            run = self._run(run_id)
            if run is None:
                return None
            try:
                run.refresh()
            except ProxRLError:
                return None
            details = run.details()
            videos = [{**video, "source": f"/video/{run_id}/{quote(video['name'], safe='')}"} for video in details["videos"]]
            return {**details, "videos": videos, "version": run.head()["version"]}

    def video(self, run_id: str, name: str) -> Path | None:
        """Only a name that is in the listing leads to a file."""
        with self._lock:
            run = self._run(run_id)
            return next((path for path in videos_of(run.folder) if path.name == name), None) if run else None

    def _run(self, run_id: str) -> PageRun | None:
        return next((run for run in self._runs.values() if run.id == run_id), None)

    def _found(self) -> list[PageRun]:
        if time.monotonic() - self._searched_at >= SECONDS_BETWEEN_SEARCHES:
            folders: dict[Path, RunFolder] = {}
            for place in self.folders:
                with contextlib.suppress(ProxRLError):  # it is gone
                    runs, broken = runs_below(place)
                    # The page tells of those that can't be read.
                    folders |= {folder.path: folder for folder in (*runs, *map(RunFolder, broken))}
            self._runs = {path: self._runs.get(path) or PageRun(folder) for path, folder in folders.items()}
            self._searched_at = time.monotonic()
        return list(self._runs.values())


class Handler(BaseHTTPRequestHandler):
    server: "Server"
    protocol_version = "HTTP/1.1"
    timeout = 60  # of a connection that nobody uses

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in OWN_NAMES:
            return self._refuse(HTTPStatus.FORBIDDEN)
        path = urlsplit(self.path).path
        if path == "/":
            foot = '<script src="/page.js"></script>'
            return self._send(filled("ProxRL", '<link rel="stylesheet" href="/page.css">', foot), "text/html")
        if path == "/page.css":
            return self._send(page_file("page.css"), "text/css")
        if path == "/page.js":
            return self._send(script(), "text/javascript")
        if path == "/data.json":
            return self._send(json.dumps(self.server.watched.index()), "application/json")
        if match := re.fullmatch(r"/run/([0-9a-f]{12})\.json", path):
            details = self.server.watched.details(match[1])
            return self._refuse(HTTPStatus.NOT_FOUND) if details is None else self._send(json.dumps(details), "application/json")
        if match := re.fullmatch(r"/video/([0-9a-f]{12})/([^/]+)", path):
            video = self.server.watched.video(match[1], unquote(match[2]))
            return self._refuse(HTTPStatus.NOT_FOUND) if video is None else self._send_video(video)
        return self._refuse(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def __getattr__(self, name: str) -> Any:
        """http.server looks for a method of the request's name, and would answer 501 where there is none."""
        if name.startswith("do_"):
            return lambda: self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD")
        raise AttributeError(name)

    def _send(self, text: str, kind: str) -> None:
        body = text.encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        if self.headers.get("If-None-Match") == tag:
            return self._answer(HTTPStatus.NOT_MODIFIED, b"", ETag=tag)
        named = {"Content-Type": f"{kind}; charset=utf-8", "ETag": tag}
        if "gzip" in self.headers.get("Accept-Encoding", "") and len(body) > 2000:
            body, named["Content-Encoding"] = gzip.compress(body, 1, mtime=0), "gzip"
        return self._answer(HTTPStatus.OK, body, **named)

    def _send_video(self, path: Path) -> None:
        """Whole, or the part that a player asks for to jump."""
        try:
            content = path.read_bytes()
        except OSError:
            return self._refuse(HTTPStatus.NOT_FOUND)
        named = {"Content-Type": VIDEO_TYPES[path.suffix], "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and int(wanted[1]) >= len(content):
            return self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
        if wanted and int(wanted[2] or len(content)) >= int(wanted[1]):  # one that ends before it begins is none
            first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
            named["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            return self._answer(HTTPStatus.PARTIAL_CONTENT, content[first : last + 1], **named)
        return self._answer(HTTPStatus.OK, content, **named)

    def _refuse(self, status: HTTPStatus, **named: str) -> None:
        self.close_connection = True  # what else was sent is not read
        self._answer(status, status.phrase.encode(), **{"Content-Type": "text/plain", "Connection": "close"}, **named)

    def _answer(self, status: HTTPStatus, body: bytes, **named: str) -> None:
        self.send_response(status)
        length = {} if status == HTTPStatus.NOT_MODIFIED else {"Content-Length": str(len(body))}
        for name, value in {**HEADERS, **named, **length}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):  # a page that was closed meanwhile
                self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are nobody's news."""


class Server(ThreadingHTTPServer):
    daemon_threads = True  # an open connection must not keep Ctrl-C waiting
    allow_reuse_address = sys.platform != "win32"  # there it would let two servers share a port

    def __init__(self, port: int, watched: Watched) -> None:
        self.watched = watched
        super().__init__((HOST, port), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # a browser that goes away is no error
            super().handle_error(request, client_address)


def make_server(places: Sequence[str | Path], port: int | None = None, runs_dir: str | Path = RUNS_DIR) -> Server:
    """Bound, not yet serving; without a port given, at the first free one from 8265 on."""
    watched = Watched(places, runs_dir)
    if port is not None and not 0 <= port < 65536:
        raise ProxRLError(f"--port is {port}, but must be between 0 and 65535")
    for candidate in [port] if port is not None else range(FIRST_PORT, FIRST_PORT + PORTS):
        try:
            return Server(candidate, watched)
        except OSError as error:
            taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
            if port is not None or not taken:
                raise ProxRLError(f"can't listen at port {candidate}: {error.strerror}; give another --port") from None
    raise ProxRLError(f"the ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are all taken; give another --port")


def watch(places: Sequence[str | Path], port: int | None = None, runs_dir: str | Path = RUNS_DIR) -> None:
    """Serve until Ctrl-C."""
    with make_server(places, port, runs_dir) as server:
        folders = ", ".join(map(str, server.watched.folders))
        print(f"Watching {folders} at http://{HOST}:{server.server_address[1]}/ (Ctrl-C ends it)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
