"""Servers on this machine that say anything, in every bad mood, over real sockets; and patience with them."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Answer = Callable[[socket.socket, str], None]
PAGE = b"vllm:num_requests_running 1\n"


@contextmanager
def serving(answer: Answer, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server on this machine that reads a request and lets `answer` say anything to it; yields its URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def handle(client: socket.socket) -> None:
        with client:
            try:
                client = context.wrap_socket(client, server_side=True) if context else client
                answer(client, client.recv(65536).decode("latin-1"))
            except OSError:
                pass
            finally:
                client.close()

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def says(body: bytes, status: str = "200 OK", **headers: str) -> Answer:
    lines = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = f"HTTP/1.1 {status}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return lambda client, request: client.sendall(head.encode() + b"\r\n" + body)


def path_of(request: str) -> str:
    return request.split(" ")[1]


def drips(client: socket.socket, request: str) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(200):
        client.sendall(b"a")
        time.sleep(0.05)


def drips_the_header(client: socket.socket, request: str) -> None:
    for _ in range(200):
        client.sendall(b"H")
        time.sleep(0.05)


def floods(client: socket.socket, request: str) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(100):
        client.sendall(b"a 1\n" * 2**18)


def hangs(client: socket.socket, request: str) -> None:
    time.sleep(30)


def eventually(is_true: Callable[[], object], patience: float = 10.0) -> None:
    deadline = time.monotonic() + patience
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
