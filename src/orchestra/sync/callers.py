"""Who calls the workspace store: a ServiceAccount's token, reviewed by the API server."""

from __future__ import annotations

import hashlib
import json
import os
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from orchestra.sync.errors import SyncError, Unreachable

AUDIENCE = "orchestra-workspace"
_ACCOUNT = re.compile(r"system:serviceaccount:([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?):[a-z0-9.-]+\Z")
_IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REMEMBERED_S = 30.0
_MOST = 4096


class Caller(NamedTuple):
    """Whose token it was."""

    namespace: str
    pod: str = ""
    """The pod that it is bound to, if it is a pod's."""


class NotAllowed(SyncError):
    """The token is missing, expired, of another audience, or no ServiceAccount's."""


class Callers:
    """Asks the API server about tokens; a good answer is remembered for half a minute, by the token's hash."""

    def __init__(self, server: str, token_file: Path, ca_file: Path) -> None:
        self._server = server.rstrip("/")
        self._token_file = token_file
        self._tls = ssl.create_default_context(cafile=str(ca_file))
        self._known: dict[str, tuple[float, Caller]] = {}
        self._lock = threading.Lock()

    @staticmethod
    def of(server: str, token_file: Path | None, ca_file: Path | None) -> Callers:
        """In a pod, what Kubernetes mounts; elsewhere what was named."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not server and not host:
            raise SyncError("this is no pod: name --kubernetes, --token-file and --ca-file")
        url = server or f"https://{f'[{host}]' if ':' in host else host}:{port}"
        return Callers(url, token_file or _IN_POD / "token", ca_file or _IN_POD / "ca.crt")

    def caller_of(self, token: str) -> Caller:
        """The namespace of the ServiceAccount whose token this is, and its pod."""
        if not token:
            raise NotAllowed("the token is missing: send it in X-Orchestra-Token")
        key, now = hashlib.sha256(token.encode()).hexdigest(), time.monotonic()
        with self._lock:
            known = self._known.get(key)
        if known is not None and now < known[0]:
            return known[1]
        found = self._review(token)
        with self._lock:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[key] = (now + _REMEMBERED_S, found)
        return found

    def _review(self, token: str) -> Caller:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        status = self.read("/apis/authentication.k8s.io/v1/tokenreviews", body).get("status") or {}
        user = status.get("user") or {}
        account = _ACCOUNT.match(str(user.get("username", "")))
        if not status.get("authenticated") or AUDIENCE not in (status.get("audiences") or []) or account is None:
            raise NotAllowed(f"the token is not a ServiceAccount's of audience {AUDIENCE}, or it has expired")
        pods = (user.get("extra") or {}).get("authentication.kubernetes.io/pod-name") or [""]
        return Caller(account[1], str(pods[0]))

    def read(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One answer of the API server."""
        request = urllib.request.Request(  # noqa: S310 -- https by construction
            f"{self._server}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._own_token()}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10, context=self._tls) as answer:  # noqa: S310
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            what = path.partition("?")[0].rpartition("/")[2]
            raise Unreachable(f"the API server does not let us use its {what}: {error.code}") from None
        except (OSError, ValueError) as error:
            raise Unreachable(f"the API server does not answer: {type(error).__name__}") from None

    def _own_token(self) -> str:
        try:
            return self._token_file.read_text().strip()  # each time: Kubernetes replaces it every hour
        except OSError as error:
            raise Unreachable(f"our own token cannot be read: {error.strerror}") from None
