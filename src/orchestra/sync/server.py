"""`python -m orchestra.sync.server`: the workspace store of a cluster.

    GET  /healthz
    POST /v1/missing              [hash, ...] -> those that are not here
    GET  /v1/uploads/<hash>       {"have": bytes}: where to go on after a cut
    PUT  /v1/uploads/<hash>/<at>  one part of at most 1 MiB; `X-Orchestra-Part` is its hash
    POST /v1/packs/<hash>         the upload is whole: it is checked, every blob in it too, and kept
    POST /v1/snapshots/<id>       the upload of that name is a manifest: published once all its blobs are here
    GET  /v1/snapshots/<id>, GET /v1/packs/<hash>[?from=&to=]
    POST /v1/workers/<job>?wait=S a worker's report -> its next order, as soon as there is one (board.py)
    GET  /v1/workers/<job>        those that asked lately
    POST /v1/reloads/<job>        new code for a running job; POST .../go: it is written down
    GET  /v1/reloads/<job>?id=&after=&wait=S  how far it is

Who calls is told by a ServiceAccount token of audience `orchestra-workspace` in a header of our own (the API server's
proxy strips the usual one). The namespace comes from the token, never from the path: another namespace's snapshots do
not exist for the caller. What is sent twice does no harm, so a client that was cut off, or a store that was killed,
just goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from orchestra.api.problem import Invalid
from orchestra.sync.board import Asked, Board, Report
from orchestra.sync.callers import Callers, NotAllowed
from orchestra.sync.errors import Busy, Damaged, Missing, NoRoom, SyncError
from orchestra.sync.forgetting import Forgetting, named_by_jobs
from orchestra.sync.hashing import hash_of, is_hash
from orchestra.sync.manifest import decode
from orchestra.sync.remote import Remote
from orchestra.sync.store import Store, chosen

TOKEN_HEADER = "X-Orchestra-Token"  # noqa: S105 -- the name of a header
PART_HEADER = "X-Orchestra-Part"
PART_BYTES = 1 << 20
_PACK_BYTES = 1 << 30
_BLOB_BYTES = 1 << 30
_QUIET_S = 3600.0
_ABANDONED_S = 24 * 3600.0
_UPLOAD = re.compile(r"/v1/uploads/([0-9a-f]{64})(?:/(\d{1,12}))?\Z")
_JOB = re.compile(r"/v1/(workers|reloads)/([A-Za-z0-9-]{1,64})(/go)?\Z")
_LONGEST_WAIT_S = 30.0
_KEPT = re.compile(r"/v1/(packs|snapshots)/([0-9a-f]{64})\Z")


class Service:
    """What the store does, without HTTP around it."""

    def __init__(self, url: str, uploads: Path) -> None:
        self._url, self._uploads = url.rstrip("/"), uploads
        self._stores: dict[str, Store] = {}
        self._sent: dict[str, float] = {}
        self.board = Board()
        self._lock = threading.Lock()

    def store(self, namespace: str) -> Store:
        """The snapshots of one namespace."""
        with self._lock:
            if namespace not in self._stores:
                cache = self._uploads / "catalogues" / namespace
                self._stores[namespace] = Store(Remote(f"{self._url}/{namespace}"), cache)
            return self._stores[namespace]

    def stores(self) -> dict[str, Store]:
        """Those of all namespaces that ever sent anything."""
        found = {key.partition("/")[0] for key in (item.key for item in Remote(self._url).listing())}
        return {namespace: self.store(namespace) for namespace in sorted(found)}

    def quiet(self, namespace: str, seconds: float) -> bool:
        """Whether nobody has sent anything lately: what was asked about may be about to be named."""
        return time.monotonic() - self._sent.get(namespace, float("-inf")) > min(_QUIET_S, seconds)

    def missing(self, namespace: str, hashes: list[str]) -> list[str]:
        """Which of these blobs are not here."""
        self._sent[namespace] = time.monotonic()
        return self.store(namespace).missing(hashes)

    def have(self, namespace: str, name: str) -> int:
        """How much of an upload is here."""
        try:
            return self._upload(namespace, name).stat().st_size
        except FileNotFoundError:
            return 0

    def part(self, namespace: str, name: str, at: int, data: bytes, digest: str) -> int:
        """One part of an upload; one that is here already is passed over."""
        if hash_of(data) != digest:
            raise Damaged("the part arrived damaged: its hash is another; send it again")
        if at + len(data) > _PACK_BYTES:
            raise SyncError(f"an upload has at most {_PACK_BYTES >> 20} MiB")
        file = self._upload(namespace, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        self._forget_abandoned(file.parent)
        with self._lock, file.open("ab") as upload:
            here = upload.tell()
            if at > here:
                raise Missing(f"the upload has {here} bytes, not {at}: go on from there")
            if at + len(data) > here:
                upload.write(data[here - at :])
        return self.have(namespace, name)

    def keep_pack(self, namespace: str, name: str) -> None:
        """An upload that is whole becomes a pack."""
        self.store(namespace).put_pack(name, self._whole(namespace, name), _BLOB_BYTES)
        self._upload(namespace, name).unlink(missing_ok=True)

    def keep_snapshot(self, namespace: str, id: str) -> None:
        """An upload that is whole becomes a snapshot, if all its blobs are here."""
        store = self.store(namespace)
        if store.has(id):
            return
        manifest = decode(self._whole(namespace, id), id)
        known, sizes = store.catalogues()
        used = {pack: sizes[pack] for pack in set(chosen(manifest.blobs(), known, sizes).values())}
        store.put_snapshot(manifest, used)
        self._upload(namespace, id).unlink(missing_ok=True)

    def _whole(self, namespace: str, name: str) -> bytes:
        try:
            data = self._upload(namespace, name).read_bytes()
        except FileNotFoundError as error:
            raise Missing("nothing was uploaded under that name; send its parts first") from error
        if hash_of(data) != name:
            self._upload(namespace, name).unlink(missing_ok=True)
            raise Damaged("the upload does not have the hash it is called by; send it anew")
        return data

    def _upload(self, namespace: str, name: str) -> Path:
        return self._uploads / "parts" / namespace / name

    def _forget_abandoned(self, folder: Path) -> None:
        for file in folder.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - file.stat().st_mtime > _ABANDONED_S:
                    file.unlink()


def _handler(service: Service, callers: Callers) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "orchestra-workspace"
        sys_version = ""
        timeout = 60

        def do_GET(self) -> None:
            self._serve(self._get)

        def do_POST(self) -> None:
            self._serve(self._post)

        def do_PUT(self) -> None:
            self._serve(self._put)

        def _serve(self, answer: object) -> None:
            self._url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length <= 8 * PART_BYTES else b""
            try:
                if self._url.path == "/healthz":
                    self._send(200, b'{"ok": true}')
                elif length > 8 * PART_BYTES:
                    self.close_connection = True
                    self._fail(413, "parts have at most 1 MiB")
                else:
                    self._caller = callers.caller_of(self.headers.get(TOKEN_HEADER) or "")
                    self._send(200, answer(self._caller.namespace, body))  # type: ignore[operator]
            except Busy as error:
                self._fail(409, str(error))
            except NotAllowed as error:
                self._fail(401, str(error))
            except (Missing, LookupError) as error:
                self._fail(404, str(error))
            except NoRoom as error:
                self._fail(507, str(error))
            except (Damaged, Invalid, ValueError) as error:
                self._fail(422, str(error))
            except (SyncError, OSError) as error:
                self._fail(503, str(error))

        def _get(self, namespace: str, _body: bytes) -> bytes:
            upload, kept = _UPLOAD.match(self._url.path), _KEPT.match(self._url.path)
            if job := _JOB.match(self._url.path):
                return self._about_job(namespace, job[1], job[2])
            if upload:
                return json.dumps({"have": service.have(namespace, upload[1])}).encode()
            if not kept:
                raise LookupError("there is nothing of that name")
            remote, key = service.store(namespace).remote, f"{kept[1]}/{kept[2]}"
            query = parse_qs(self._url.query)
            if "from" in query:
                return remote.get_range(key, int(query["from"][0]), int(query["to"][0]))
            return remote.get(key)

        def _post(self, namespace: str, body: bytes) -> bytes:
            if self._url.path == "/v1/missing":
                asked = [name for name in msgspec.json.decode(body, type=list[str]) if is_hash(name)]
                return msgspec.json.encode(service.missing(namespace, asked))
            if job := _JOB.match(self._url.path):
                return self._for_job((namespace, job[2]), job[1] + (job[3] or ""), body)
            kept = _KEPT.match(self._url.path)
            if not kept:
                raise LookupError("there is nothing of that name")
            keep = service.keep_pack if kept[1] == "packs" else service.keep_snapshot
            keep(namespace, kept[2])
            return b"{}"

        def _put(self, namespace: str, body: bytes) -> bytes:
            upload = _UPLOAD.match(self._url.path)
            if not upload or upload[2] is None:
                raise LookupError("there is nothing of that name")
            if len(body) > PART_BYTES:
                raise ValueError("parts have at most 1 MiB")
            digest = self.headers.get(PART_HEADER) or ""
            return json.dumps({"have": service.part(namespace, upload[1], int(upload[2]), body, digest)}).encode()

        def _about_job(self, namespace: str, what: str, uid: str) -> bytes:
            if what == "workers":
                return msgspec.json.encode(service.board.workers((namespace, uid)))
            query = {name: values[0] for name, values in parse_qs(self._url.query).items()}
            found = service.board.look((namespace, uid), query["id"], query.get("after", ""), self._wait(query))
            if found is None:
                raise LookupError("this store knows of no such change: it was started anew meanwhile")
            return msgspec.json.encode(found)

        def _for_job(self, key: tuple[str, str], what: str, body: bytes) -> bytes:
            if what == "workers":
                report = msgspec.json.decode(body, type=Report)
                if self._caller.pod and self._caller.pod != report.worker:
                    raise NotAllowed(f"{self._caller.pod} speaks for itself only, not for {report.worker}")
                query = {name: values[0] for name, values in parse_qs(self._url.query).items()}
                return msgspec.json.encode(service.board.hear(key, report, self._wait(query)))
            if what == "reloads":
                asked = msgspec.json.decode(body, type=Asked)
                if asked.snapshot and not service.store(key[0]).has(asked.snapshot):
                    raise Missing(f"snapshot {asked.snapshot[:12]} is not here; send it first")
                return msgspec.json.encode(service.board.ask(key, asked))
            if what == "reloads/go":
                service.board.go(key, str(msgspec.json.decode(body)["id"]))
                return b"{}"
            raise LookupError("there is nothing of that name")

        def _wait(self, query: dict[str, str]) -> float:
            return min(_LONGEST_WAIT_S, max(0.0, float(query.get("wait", "0"))))

        def _send(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header(
                "Content-Type", "application/json" if body[:1] in (b"{", b"[") else "application/octet-stream"
            )
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _fail(self, code: int, message: str) -> None:
            """As Kubernetes tells it, for it may pass through the API server."""
            told = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
            self._send(code, json.dumps(told).encode())

        def log_message(self, *_: object) -> None:
            """Quiet; failures are told to whoever asked."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


def _say(text: str) -> None:
    print(text, flush=True)


def _again_and_again(forgetting: Forgetting, after: float) -> None:
    while True:
        time.sleep(min(3600.0, max(0.5, after / 10)))
        forgetting.once()


def main(words: list[str]) -> int:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(prog="orchestra.sync.server")
    parser.add_argument("--store", required=True, metavar="URL", help="file:///folder of a volume, s3://, gs://, az://")
    parser.add_argument("--uploads", required=True, type=Path, help="folder for uploads that are not whole yet")
    parser.add_argument("--listen", default="0.0.0.0:8080", metavar="HOST:PORT")
    told = "snapshots that no unfinished job names go after this (default: a day; 0: never)"
    parser.add_argument("--forget-after", type=float, default=24 * 3600.0, metavar="SECONDS", help=told)
    parser.add_argument("--kubernetes", default="", metavar="URL", help="outside a cluster: the API server")
    parser.add_argument("--token-file", type=Path, help="outside a cluster: our own token")
    parser.add_argument("--ca-file", type=Path, help="outside a cluster: the API server's certificate authority")
    args = parser.parse_args(words)
    try:
        callers = Callers.of(args.kubernetes, args.token_file, args.ca_file)
        args.uploads.mkdir(parents=True, exist_ok=True)
        service = Service(args.store, args.uploads)
        host, _, port = args.listen.rpartition(":")
        server = _Server((host, int(port)), _handler(service, callers))
    except (SyncError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start())
    room = shutil.disk_usage(args.uploads).free >> 20
    print(f"workspace store on port {server.server_address[1]}, {room:,} MiB for uploads", flush=True)
    if args.forget_after > 0:
        after = args.forget_after
        janitor = Forgetting(
            service.stores, lambda one: service.quiet(one, after), lambda: named_by_jobs(callers), after, _say
        )
        threading.Thread(target=_again_and_again, args=(janitor, after), daemon=True).start()
    server.serve_forever()
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
