"""Imitates the metadata servers of three clouds on the loopback interface."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MACHINE = "worker-3"


@dataclass
class Metadata:
    """State of a fake metadata server. The method `answer` computes the server's answers."""

    cloud: str
    address: str = ""
    end: datetime | None = None
    """Time at which the cloud will reclaim the machine, or None if no preemption is announced."""
    event: str = "Preempt"
    machines: list[str] = field(default_factory=lambda: [MACHINE])
    """Names of the machines that the event affects. Only Azure's server reports them."""
    asked: int = 0

    def announce(self, seconds: float) -> None:
        self.end = datetime.now(UTC) + timedelta(seconds=seconds)

    def answer(self, method: str, path: str, header: "dict[str, str]") -> "tuple[int, str]":
        """Returns the status code and the content of the answer to a request."""
        asked = method, path.partition("?")[0]
        if self.cloud == "aws":
            if asked == ("PUT", "/latest/api/token"):
                return (200, "secret") if "x-aws-ec2-metadata-token-ttl-seconds" in header else (400, "")
            if header.get("x-aws-ec2-metadata-token") != "secret":
                return 401, ""
            if asked == ("GET", "/latest/meta-data/spot/instance-action") and self.end:
                return 200, json.dumps({"action": "terminate", "time": f"{self.end:%Y-%m-%dT%H:%M:%SZ}"})
        if self.cloud == "google" and asked == ("GET", "/computeMetadata/v1/instance/preempted"):
            return (200, "TRUE" if self.end else "FALSE") if header.get("metadata-flavor") == "Google" else (403, "")
        if self.cloud == "azure" and header.get("metadata") != "true":
            return 400, ""
        if self.cloud == "azure" and asked == ("GET", "/metadata/instance/compute/name"):
            return 200, MACHINE
        if self.cloud == "azure" and asked == ("GET", "/metadata/scheduledevents"):
            begins = format_datetime(self.end, usegmt=True) if self.end else ""
            event = {"EventType": self.event, "Resources": self.machines, "NotBefore": begins}
            return 200, json.dumps({"DocumentIncarnation": 1, "Events": [event] if self.end else []})
        return 404, ""


@contextmanager
def served(cloud: str) -> Iterator[Metadata]:
    """Runs the metadata server of a cloud during the block, and yields its state."""
    metadata = Metadata(cloud)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            metadata.asked += 1
            header = {name.lower(): value for name, value in self.headers.items()}
            status, content = metadata.answer(self.command, self.path, header)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content.encode())

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        metadata.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield metadata
        server.shutdown()
