"""Imitates the Hub on this machine, as far as huggingface_hub needs it to push a folder. Files stay in memory."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_fake_token"


@dataclass
class FakeHub:
    """The state of the fake Hub's server."""

    repositories: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings of each repository, by its name."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Committed files, by path."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """Uploaded large files, by SHA-256."""
    uploads: list[str] = field(default_factory=list)
    """SHA-256 of each uploaded large file, in the order of uploads."""
    commits: int = 0
    asked: list[str] = field(default_factory=list)
    """Method and path of each request."""
    breaks_at: str = ""
    """Requests whose path contains this text get status 500."""
    address: str = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Returns the status and the content of the response to a request."""
        route = path.partition("?")[0]
        if self.breaks_at and self.breaks_at in route:
            return 500, {"error": "broken"}
        if route == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            known = name in self.repositories
            self.repositories.setdefault(name, asked)
            return (409 if known else 200), {"url": f"{self.address}/{name}"}
        if "/preupload/" in route:
            named = [entry["path"] for entry in json.loads(body)["files"]]
            modes = ["lfs" if name.endswith((".safetensors", ".onnx")) else "regular" for name in named]
            return 200, {
                "files": [
                    {"path": name, "uploadMode": mode, "shouldIgnore": False, "oid": None}
                    for name, mode in zip(named, modes, strict=True)
                ]
            }
        if route.endswith("/info/lfs/objects/batch"):
            return 200, {"transfer": "basic", "objects": [self._object(entry) for entry in json.loads(body)["objects"]]}
        if route == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if route.startswith("/upload/"):
            self.uploads.append(route.removeprefix("/upload/"))
            self.objects[hashlib.sha256(body).hexdigest()] = body
            return 200, {}
        if "/commit/" in route:
            return 200, self._commit([json.loads(line) for line in body.splitlines()])
        if "/tree/" in route:
            return 200, [
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in self.files.items()
            ]
        if route.startswith("/api/models/"):
            return 200, {"id": route.removeprefix("/api/models/"), "sha": "0" * 40, "siblings": []}
        return 404, {"error": f"the fake does not know {route}"}

    def _object(self, entry: dict[str, Any]) -> dict[str, Any]:
        if entry["oid"] in self.objects:
            return entry
        return {**entry, "actions": {"upload": {"href": f"{self.address}/upload/{entry['oid']}", "header": {}}}}

    def _commit(self, lines: list[dict[str, Any]]) -> dict[str, Any]:
        for line in lines:
            if line["key"] == "deletedFile":
                del self.files[line["value"]["path"]]
            if line["key"] == "file":
                self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            if line["key"] == "lfsFile":
                self.files[line["value"]["path"]] = self.objects[line["value"]["oid"]]
        self.commits += 1
        number = f"{self.commits:040d}"
        return {"commitUrl": f"{self.address}/me/model/commit/{number}", "commitOid": number, "hookOutput": ""}


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Serves a fake Hub on a free port of this machine while the block runs."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = self._chunks()
            hub.asked.append(f"{self.command} {self.path}")
            allowed = self.path.startswith("/upload/") or self.headers.get("Authorization") == f"Bearer {TOKEN}"
            status, content = hub.answer(self.command, self.path, body) if allowed else (401, {"error": "no access"})
            written = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(written)))
            self.end_headers()
            self.wfile.write(written)

        def _chunks(self) -> bytes:
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        do_GET = do_POST = do_PUT = do_HEAD = _answer  # noqa: N815  # names of the standard library

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
