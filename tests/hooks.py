"""A real webhook on this machine."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Receiver(ThreadingHTTPServer):
    """Keeps what is posted, and answers with the statuses it is given, then with 200."""

    daemon_threads = True

    def __init__(self, statuses: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = statuses
        self.bodies: list[dict[str, object]] = []
        self.headers: list[Mapping[str, str]] = []
        self.gate = threading.Event()
        self.gate.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook/s3cret"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.gate.wait(20)
        content = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.server.headers.append(dict(self.headers))
        self.server.bodies.append(json.loads(content) | {"answered": status})
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def receiver(*statuses: int) -> Iterator[Receiver]:
    with Receiver(list(statuses)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.gate.set()
            server.shutdown()
            thread.join()
