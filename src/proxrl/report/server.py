"""Serve the page of `proxrl report` live, for `proxrl watch`: read-only, on 127.0.0.1 only."""

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
from proxrl.report.page import fill_page, read_asset, script
from proxrl.report.page_data import VIDEO_TYPES, PageRun, document, videos_of
from proxrl.runs.folder import RUNS_DIR, RunFolder
from proxrl.runs.lookup import find_folder, runs_below

HOST, FIRST_PORT, PORTS = "127.0.0.1", 8265, 50
# Between searches for new runs, however many pages are open.
SECONDS_BETWEEN_SEARCHES = 2.0
# DNS rebinding: a page of another origin whose name resolves to this machine still sends that name in its Host header.
ALLOWED_HOSTS = {"127.0.0.1", "localhost"}
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


class WatchedRuns:
    """The runs at or below some folders, shared by all threads of the server."""

    def __init__(self, runs: Sequence[str | Path], runs_dir: str | Path = RUNS_DIR) -> None:
        self.folders = [find_folder(run, runs_dir) for run in runs]
        self._runs: dict[Path, PageRun] = {}
        self._searched_at = -SECONDS_BETWEEN_SEARCHES
        self._lock = threading.Lock()

    def index(self) -> dict[str, Any]:
        """Return the data without the details of the runs, which pages request when a run has changed."""
        with self._lock:
            return document(self._find(), live=True)

    def details(self, run_id: str) -> dict[str, Any] | None:
        """Return the details of a run, or None if there is no such run or it can't be read."""
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
        """Return the path of a video. Only names in the listing are accepted, so no other file can be reached."""
        with self._lock:
            run = self._run(run_id)
            return next((path for path in videos_of(run.folder) if path.name == name), None) if run else None

    def _run(self, run_id: str) -> PageRun | None:
        return next((run for run in self._runs.values() if run.id == run_id), None)

    def _find(self) -> list[PageRun]:
        """Return all runs; search for new ones if the last search is long enough ago."""
        if time.monotonic() - self._searched_at >= SECONDS_BETWEEN_SEARCHES:
            folders: dict[Path, RunFolder] = {}
            for path in self.folders:
                with contextlib.suppress(ProxRLError):  # the folder was deleted
                    runs, broken = runs_below(path)
                    # Broken ones too: the page shows their errors.
                    folders |= {folder.path: folder for folder in (*runs, *map(RunFolder, broken))}
            self._runs = {path: self._runs.get(path) or PageRun(folder) for path, folder in folders.items()}
            self._searched_at = time.monotonic()
        return list(self._runs.values())


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: "Server"
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds until an idle connection is closed

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in ALLOWED_HOSTS:
            return self._refuse(HTTPStatus.FORBIDDEN)
        path = urlsplit(self.path).path
        if path == "/":
            foot = '<script src="/page.js"></script>'
            return self._send(fill_page("ProxRL", '<link rel="stylesheet" href="/page.css">', foot), "text/html")
        if path == "/page.css":
            return self._send(read_asset("page.css"), "text/css")
        if path == "/page.js":
            return self._send(script(), "text/javascript")
        if path == "/data.json":
            return self._send(json.dumps(self.server.runs.index()), "application/json")
        if match := re.fullmatch(r"/run/([0-9a-f]{12})\.json", path):
            details = self.server.runs.details(match[1])
            return self._refuse(HTTPStatus.NOT_FOUND) if details is None else self._send(json.dumps(details), "application/json")
        if match := re.fullmatch(r"/video/([0-9a-f]{12})/([^/]+)", path):
            video = self.server.runs.video(match[1], unquote(match[2]))
            return self._refuse(HTTPStatus.NOT_FOUND) if video is None else self._send_video(video)
        return self._refuse(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def __getattr__(self, name: str) -> Any:
        """Refuse other methods with 405: http.server calls `do_<method>`, and answers 501 if there is none."""
        if name.startswith("do_"):
            return lambda: self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD")
        raise AttributeError(name)

    def _send(self, text: str, content_type: str) -> None:
        body = text.encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        if self.headers.get("If-None-Match") == tag:
            return self._answer(HTTPStatus.NOT_MODIFIED, b"", ETag=tag)
        headers = {"Content-Type": f"{content_type}; charset=utf-8", "ETag": tag}
        if "gzip" in self.headers.get("Accept-Encoding", "") and len(body) > 2000:
            body, headers["Content-Encoding"] = gzip.compress(body, 1, mtime=0), "gzip"
        return self._answer(HTTPStatus.OK, body, **headers)

    def _send_video(self, path: Path) -> None:
        """Send a video, or the range of bytes that a player requests to seek."""
        try:
            content = path.read_bytes()
        except OSError:
            return self._refuse(HTTPStatus.NOT_FOUND)
        headers = {"Content-Type": VIDEO_TYPES[path.suffix], "Accept-Ranges": "bytes"}
        requested = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if requested and int(requested[1]) >= len(content):
            return self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
        if requested and int(requested[2] or len(content)) >= int(requested[1]):  # a range that ends before it begins is ignored
            first, last = int(requested[1]), min(int(requested[2] or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            return self._answer(HTTPStatus.PARTIAL_CONTENT, content[first : last + 1], **headers)
        return self._answer(HTTPStatus.OK, content, **headers)

    def _refuse(self, status: HTTPStatus, **headers: str) -> None:
        self.close_connection = True  # the rest of the request is not read
        self._answer(status, status.phrase.encode(), **{"Content-Type": "text/plain", "Connection": "close"}, **headers)

    def _answer(self, status: HTTPStatus, body: bytes, **headers: str) -> None:
        self.send_response(status)
        length = {} if status == HTTPStatus.NOT_MODIFIED else {"Content-Length": str(len(body))}
        for name, value in {**HEADERS, **headers, **length}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):  # the page was closed meanwhile
                self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Don't print requests."""


class Server(ThreadingHTTPServer):
    """The HTTP server of `proxrl watch`."""

    daemon_threads = True  # an open connection must not delay Ctrl-C
    allow_reuse_address = sys.platform != "win32"  # on Windows, two servers could then share a port

    def __init__(self, port: int, runs: WatchedRuns) -> None:
        self.runs = runs
        super().__init__((HOST, port), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # a browser that disconnects is not an error
            super().handle_error(request, client_address)


def make_server(runs: Sequence[str | Path], port: int | None = None, runs_dir: str | Path = RUNS_DIR) -> Server:
    """Return a server that is bound to `port`, or to the first free port from 8265 on, but does not serve yet."""
    watched = WatchedRuns(runs, runs_dir)
    if port is not None and not 0 <= port < 65536:
        raise ProxRLError(f"--port is {port}, but must be between 0 and 65535")
    for candidate in [port] if port is not None else range(FIRST_PORT, FIRST_PORT + PORTS):
        try:
            return Server(candidate, watched)
        except OSError as error:
            taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
            if port is not None or not taken:
                raise ProxRLError(f"can't listen on port {candidate}: {error.strerror}; give another --port") from None
    raise ProxRLError(f"the ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are all taken; give another --port")


def watch(runs: Sequence[str | Path], port: int | None = None, runs_dir: str | Path = RUNS_DIR) -> None:
    """Serve the page until Ctrl-C."""
    with make_server(runs, port, runs_dir) as server:
        url = f"http://{HOST}:{server.server_address[1]}/"
        print(f"Watching {', '.join(map(str, server.runs.folders))} at {url} (Ctrl-C to stop)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
