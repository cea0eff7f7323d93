"""This folder to the cluster's workspace store, through the API server: nothing but the kubeconfig is needed."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from orchestra.api.engine import EngineError, Submission
from orchestra.api.job import Workspace
from orchestra.api.labels import COMMIT_ANNOTATION
from orchestra.api.queue import TorchrunQueue
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError, Unreachable
from orchestra.plan.volumes import plan_code
from orchestra.sync import client as store
from orchestra.sync.callers import AUDIENCE
from orchestra.sync.errors import Changed, SyncError
from orchestra.sync.errors import Unreachable as StoreAway
from orchestra.sync.server import TOKEN_HEADER
from orchestra.sync.snapshot import Limits, Snapshot, limits_of, snapshot

A = TypeVar("A")
SERVICE = "orchestra-workspace"
SYSTEM = "orchestra-system"
PORT = 8080
_TOKEN_SECONDS = 600
_TRIES = 3
_AWAY_SECONDS = 60.0


class Runs(Protocol):
    """Something that runs coroutines for us."""

    def run(self, work: Coroutine[Any, Any, A]) -> A:
        """The result."""


def with_folder(
    runs: Runs, client: Client, namespace: str, submission: Submission, queue: TorchrunQueue, say: Callable[[str], None]
) -> Submission:
    """The submission with its folder in the store, if its code comes from there. No store: said, and as it was."""
    job, folder = submission.job, Path(submission.folder)
    code = plan_code(job.spec, queue.spec)
    fetched = job.spec.sync is not None and job.spec.sync.code
    if code is None or code.source != "local" or code.snapshot or fetched or not folder.is_dir():
        return submission
    try:
        ask = store_of(runs, client, namespace)
        taken = send_folder(ask, folder, submission.include, limits_of(os.environ))
    except NoStore as error:
        client.on_warning(str(error))
        return submission
    told = f"{taken.manifest.files:,} files, {taken.manifest.bytes / (1 << 20):,.1f} MiB"
    say(f"sent this folder: snapshot {taken.id[:12]}, {told}{commit_told(taken)}")
    for one in taken.secrets:
        client.on_warning(f"{one.path} looks like a secret and stays home; --include {one.path} ships it")
    for text in taken.warnings:
        client.on_warning(text)
    workspace = msgspec.structs.replace(job.spec.workspace or Workspace(), snapshot=taken.id)
    notes = dict(job.metadata.annotations) | commit_note(taken)
    made = msgspec.structs.replace(
        job,
        metadata=msgspec.structs.replace(job.metadata, annotations=notes),
        spec=msgspec.structs.replace(job.spec, workspace=workspace),
    )
    return msgspec.structs.replace(submission, job=made)


def commit_note(taken: Snapshot) -> dict[str, str]:
    """The commit of a snapshot, as it stands on a job."""
    if taken.commit is None:
        return {}
    return {COMMIT_ANNOTATION: taken.commit.id + ("-dirty" if taken.commit.dirty else "")}


def commit_told(taken: Snapshot) -> str:
    """The commit of a snapshot, for people."""
    if taken.commit is None:
        return ""
    return f", commit {taken.commit.id[:10]}{' with changes' if taken.commit.dirty else ''}"


class NoStore(EngineError):
    """The cluster has no workspace store."""


def store_of(runs: Runs, client: Client, namespace: str) -> Proxy:
    """The workspace store, as this user reaches it."""
    return Proxy(runs, client, namespace, os.environ.get("ORCHESTRA_SYSTEM_NAMESPACE", SYSTEM))


def send_folder(ask: store.Ask, folder: Path, include: list[str], limits: Limits) -> Snapshot:
    """Brings a snapshot of a folder to the store. When this returns, a worker anywhere can pull it by its id."""
    try:
        for attempt in range(1, _TRIES + 1):
            taken = snapshot(folder, named=include, limits=limits)
            try:
                store.push(taken, ask)
                return taken
            except Changed:
                if attempt == _TRIES:
                    raise
    except SyncError as error:
        raise EngineError(str(error)) from error
    raise AssertionError("unreachable")


class Proxy:
    """Asks the store through the API server's service proxy, in the name of a ServiceAccount of the namespace."""

    def __init__(self, runs: Runs, client: Client, namespace: str, system: str) -> None:
        self._runs, self._client, self._namespace = runs, client, namespace
        self._base = f"/api/v1/namespaces/{system}/services/http:{SERVICE}:{PORT}/proxy"
        self._system = system
        self._token, self._until = "", 0.0

    def __call__(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        return self._runs.run(self._ask(method, path, body, headers))

    async def _ask(self, method: Any, path: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        until, wait = time.monotonic() + _AWAY_SECONDS, 0.2
        while True:
            told = {**headers, TOKEN_HEADER: await self._fresh_token()}
            try:
                answer = await self._client.transport.request(
                    method, self._base + path, body=body, content_type="application/octet-stream", headers=told
                )
                return bytes(answer.body)
            except ApiError as error:
                # Where it is installed everybody with a login may knock: who may not, knocks where there is none.
                if (error.code == 404 and "services" in error.refusal.message) or error.code == 403:
                    mend = "install it with config/workspace.yaml, or bring code by an image, git or sync.code"
                    raise NoStore(f"there is no workspace store in {self._system}: {mend}") from error
                refused = store.refusal(
                    error.code, json.dumps({"message": error.refusal.message}).encode(), self._system
                )
                if not isinstance(refused, StoreAway) or time.monotonic() > until:
                    raise refused from error
            except Unreachable as error:
                if time.monotonic() > until:
                    raise StoreAway(f"the API server does not answer: {error}") from error
            await asyncio.sleep(wait)  # it may just be starting again: everything here can be asked twice
            wait = min(2.0, wait * 2)

    async def _fresh_token(self) -> str:
        if time.monotonic() < self._until:
            return self._token
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [AUDIENCE], "expirationSeconds": _TOKEN_SECONDS},
        }
        account = os.environ.get("ORCHESTRA_SERVICE_ACCOUNT", "default")
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token"
        try:
            answer = await self._client.transport.request("POST", path, body=json.dumps(body).encode())
        except ApiError as error:
            if error.code != 403:
                raise
            mend = "ask for the ClusterRole orchestra-user in it"
            raise NoStore(f"you may not name yourself to the workspace store in {self._namespace}: {mend}") from error
        self._token = str(json.loads(answer.body)["status"]["token"])
        self._until = time.monotonic() + _TOKEN_SECONDS / 2
        return self._token
