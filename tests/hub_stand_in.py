"""A stand-in for the model hub: a server on this machine that keeps repositories in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub(ThreadingHTTPServer):
    """Speaks as much of the hub's language as its client needs to make, fill and read repositories.

    Attributes:
        repositories: By name, files by path.
        private: Names of private ones.
        commits: Of each commit the repository, branch and paths.
        cards: Cards that were sent to be validated.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.commits: list[tuple[str, str, list[str]]] = []
        self.cards: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def sha(self, name: str) -> str:
        files = sorted(self.repositories[name].items())
        return hashlib.sha1(repr(files).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, content: object, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self, code: str) -> None:
        self.answer({"error": "not found"}, 404, X_Error_Code=code, X_Error_Message="not found")

    def do_POST(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != "Bearer hf_right":
            self.answer({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            known = name in hub.repositories
            hub.repositories.setdefault(name, {})
            if asked.get("private") or asked.get("visibility") == "private":
                hub.private.add(name)
            address = {"url": f"{hub.address}/{name}", "name": name}
            self.answer(
                address if not known else {**address, "error": "it is there already"},
                409 if known else 200,
            )
        elif path == "/api/validate-yaml":
            hub.cards.append(json.loads(body)["content"])
            self.answer({"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/(.+)/preupload/(.+)", path):
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for one in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif found := re.fullmatch(r"/api/models/(.+)/commit/(.+)", path):
            lines = [json.loads(line) for line in body.splitlines() if line.strip()]
            sent = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file"
            }
            hub.repositories[found[1]] |= sent
            hub.commits.append((found[1], found[2], sorted(sent)))
            sha = hub.sha(found[1])
            address = f"{hub.address}/{found[1]}/commit/{sha}"
            self.answer({"commitUrl": address, "commitOid": sha, "success": True})
        else:
            self.missing("EntryNotFound")

    def do_GET(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            if found[1] not in hub.repositories:
                self.missing("RepoNotFound")
            elif (content := hub.repositories[found[1]].get(found[3])) is None:
                self.missing("EntryNotFound")
            else:
                tag = hashlib.sha1(content).hexdigest()
                self.answer(content, X_Repo_Commit=hub.sha(found[1]), ETag=f'"{tag}"')
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/.*)?", path):
            if found[1] not in hub.repositories:
                self.missing("RepoNotFound")
            elif (found[2] or "").startswith("/tree/"):
                self.answer(
                    [
                        {"type": "file", "path": name, "size": len(one), "oid": "0" * 40}
                        for name, one in hub.repositories[found[1]].items()
                    ]
                )
            else:
                files = [{"rfilename": name} for name in hub.repositories[found[1]]]
                sha = hub.sha(found[1])
                self.answer({"id": found[1], "sha": sha, "siblings": files, "private": False})
        else:
            self.missing("RepoNotFound")

    do_HEAD = do_GET


@contextmanager
def hub_running() -> Iterator[Hub]:
    """Run one."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
