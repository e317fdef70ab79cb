"""Clean workloads with sockets, on the loopback interface only."""

from __future__ import annotations

import http.server
import socket
import threading
import urllib.request
from http import HTTPStatus
from pathlib import Path
from random import Random

from workloads import Step, workload


@workload()
def echo_over_sockets(chance: Random, folder: Path) -> Step:
    """Send data to an echo server in a thread, and read it back."""

    def echo(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            while received := connection.recv(4096):
                connection.sendall(received)

    def step() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=echo, args=(server,))
            thread.start()
            with socket.create_connection(server.getsockname()) as client:
                for _ in range(chance.randint(1, 5)):
                    sent = chance.randbytes(chance.randint(1, 2000))
                    client.sendall(sent)
                    received = b""
                    while len(received) < len(sent):
                        received += client.recv(4096)
                    assert received == sent
            thread.join()

    return step


@workload()
def http_over_loopback(chance: Random, folder: Path) -> Step:
    """Send requests to an HTTP server in a thread."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *words: object) -> None:  # noqa: A002 - the name is the base class's
            """Print nothing."""

    # A proxy set in the environment would receive even requests to loopback addresses.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def step() -> None:
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
            # The argument is the number of seconds between checks for a request to stop; the default is 0.5.
            thread = threading.Thread(target=server.serve_forever, args=(0.005,))
            thread.start()
            try:
                for _ in range(chance.randint(1, 3)):
                    sent = chance.randbytes(chance.randint(1, 5000))
                    with opener.open(f"http://127.0.0.1:{server.server_port}/", sent, timeout=30) as answer:
                        assert answer.read() == sent
            finally:
                server.shutdown()
                thread.join()

    return step
