"""Starts the agent in a pod whose controller knows nothing of Orchestra.

    python3 start.py LAUNCH.json

The launch spec is one for all nodes; here it gets what only the pod knows (its number, how often it has been started)
and becomes process 1. A finished pod is not started again: where its controller would do that, it idles.
Standard library only, Python 3.8 or newer: this file is put into the user's image as it is.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
TOKENS = ("HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HF_API_TOKEN")


def expand(value: Any, known: dict[str, str]) -> Any:
    """`$(NAME)` by its value, `$$` by one dollar, as Kubernetes does in a container's args."""
    if isinstance(value, str):
        return REFERENCE.sub(lambda found: "$" if found[0] == "$$" else known.get(found[1], found[0]), value)
    if isinstance(value, list):
        return [expand(item, known) for item in value]
    if isinstance(value, dict):
        return {name: expand(item, known) for name, item in value.items()}
    return value


def read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def node_rank(variable: str) -> int:
    """This pod's number: from its controller, else from the end of its name."""
    given = os.environ.get(variable) or os.environ.get("POD_NAME", "").rpartition("-")[2]
    return int(given) if given.isdigit() else 0


def idle(listen: str, result: dict[str, Any]) -> None:
    """Answers as the agent did, so that the probes stay content, until the pod is deleted."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"idle": True, "state": result.get("state"), "failure": result.get("failure")}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Probes are not news."""

    host, _, port = listen.rpartition(":")
    server = HTTPServer((host, int(port)), Answer)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print("this node is {}; idling until the pod is deleted".format(result.get("state")), flush=True)
    server.serve_forever()
    server.server_close()


def main(words: list[str]) -> None:
    """Becomes the agent, or idles."""
    spec = read(Path(words[0]))
    here = spec.pop("start")
    folder = Path(spec["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    history, result = read(folder / "starts.json"), read(folder / "result.json")
    starts, failures = int(history.get("starts", 0)), int(history.get("failures", 0))
    if starts and result.get("state") not in ("done", "stopped"):
        failures += 1
    over = result.get("state") == "done" or failures > here["maxRestarts"]
    if starts and over and here["idles"]:
        idle(spec["listen"], result or {"state": "failed"})
        return
    (folder / "starts.json").write_text(json.dumps({"starts": starts + 1, "failures": failures}), "utf-8")
    rank = node_rank(here["rankVariable"])
    os.environ["NODE_RANK"] = str(rank)
    for name in TOKENS:
        if os.environ.get(name):
            os.environ.setdefault("HF_TOKEN", os.environ[name])
    known = {**os.environ, "IS_HOST": "1" if rank == 0 else "0"}
    spec = expand(spec, known)
    spec.update(node=rank, nodes=int(known.get("NNODES", "1")), attempt=starts + 1)
    file = folder / "launch.json"
    file.write_text(json.dumps(spec), "utf-8")
    agent = str(Path(words[0]).absolute().parent / "agent.pyz")
    os.execv(sys.executable, [sys.executable, agent, "run", str(file)])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
