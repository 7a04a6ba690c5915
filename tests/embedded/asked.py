"""An API for `nylorun secrets` that keeps what it is asked."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VALUE = "s3cret value"


class Server:
    """An API that keeps what it is asked and gives one answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answer: tuple[int, Any] = (200, {"name": "KEY", "type": "bearer", "createdAt": "t"})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _any(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append((self.command, self.path, json.loads(data) if data else None))
                body = json.dumps(outer.answer[1]).encode()
                self.send_response(outer.answer[0])
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_DELETE = _any

            def log_message(self, *_: Any) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
