"""`python -m orchestra.sync.worker fetch|send|follow ORDERS`: moves the bytes of one worker.

In a pod these are an init container and native sidecars of the Orchestra image; on this machine, two processes beside
the job. `fetch` ends when everything is here. `send` goes on until SIGTERM (or until whoever started it is gone: its
standard input closes), then sends everything once more and ends with 0 if all of it is there. `follow` brings new code.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

# Nothing of ours is imported before somebody listens for SIGTERM: process 1 of a container never hears an earlier one.

REFUSED = 3
"""Exit code: another try would find the same."""
_USAGE = "usage: python -m orchestra.sync.worker fetch|send|follow ORDERS.json|env:NAME"


def main(words: list[str]) -> int:
    """0 when all was moved; 1 with the reason, 3 where trying again is of no use; 2 for a wrong call."""
    if len(words) != 2 or words[0] not in ("fetch", "send", "follow"):
        print(_USAGE, file=sys.stderr)
        return 2
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set() if words[0] == "send" else _leave(words[0]))
    from orchestra.api.problem import Invalid
    from orchestra.sync.company import InUse
    from orchestra.sync.errors import Missing, NoAccess, SyncError
    from orchestra.sync.moving import fail, read_orders

    if words[1].startswith("env:"):  # a pod, whose trainer may be another user: it goes on writing in these folders
        os.umask(0)
    try:
        orders = read_orders(words[1])
        if words[0] == "fetch":
            from orchestra.sync.fetching import fetch

            fetch(orders)
            return 0
        if words[0] == "follow":
            from orchestra.sync.following import Follower

            return Follower(orders, stop).run()
        from orchestra.sync.sending import Sender

        threading.Thread(target=_until_closed, args=(stop,), daemon=True).start()
        return Sender(orders).run(stop)
    except (NoAccess, Missing, Invalid, InUse) as error:
        fail(error)
        return REFUSED
    except SyncError as error:
        return fail(error)


def _leave(what: str) -> None:
    """At once: `fetch` begins again in the next pod, and `follow` has nothing to finish."""
    os._exit(0 if what == "follow" else 143)


def _until_closed(stop: threading.Event) -> None:
    """Standard input is a lifeline where it is a pipe; a pod's is empty from the start and says nothing."""
    if os.environ.get("ORCHESTRA_LIFELINE") == "stdin":
        while os.read(0, 4096):
            pass
        stop.set()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # the store's own threads must not hold the end of a pod
