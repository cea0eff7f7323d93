"""The writer process: `python -m orchestra.train.writer DESCRIPTOR`, started by `Checkpoints`, not by people.

Executed anew, never forked and never spawned: it shares nothing with the training but a socket and the staging memory,
runs none of the user's code and takes part in no collective. It has a session of its own, because torchrun signals a
rank's whole group when it ends it. When the training is gone it finishes what it has in hand, and ends.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import socket
import sys
import time

from orchestra.train.background import HEADER, Order, Outcome, exactly
from orchestra.train.publishing import perform, write_state
from orchestra.train.staging import unstaged

_PATIENCE_ALONE = 5.0


def main(descriptor: int) -> None:
    """Serve one training until it hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the training's; it decides what is still written
    connection = socket.socket(fileno=descriptor)
    memory: mmap.mmap | None = None
    while True:
        header, descriptors, _, _ = socket.recv_fds(connection, HEADER.size, 1)
        if not header:
            return
        for received in descriptors:
            memory = mmap.mmap(received, 0, flags=mmap.MAP_SHARED)
            os.close(received)
        body = exactly(connection, HEADER.unpack(header)[0])
        if body is None or memory is None:
            return
        answer = pickle.dumps(_carry_out(pickle.loads(body), memory, connection))  # noqa: S301 - our own parent
        try:
            connection.sendall(HEADER.pack(len(answer)) + answer)
        except OSError:
            return


def _carry_out(order: Order, memory: mmap.mmap, connection: socket.socket) -> Outcome:
    task, begun = order.task, time.monotonic()
    alone_since: list[float] = []

    def alone() -> bool:
        if _hung_up(connection) and not alone_since:
            alone_since.append(time.monotonic())
        return bool(alone_since) and time.monotonic() - alone_since[0] > _PATIENCE_ALONE

    try:
        state = unstaged(order.skeleton, memory)
        name = perform(task, write_state(state, task.rank, order.sharded), alone)
    except Exception as error:  # noqa: BLE001 - whatever it is, the training must hear of it
        return Outcome(task.step, error=str(error) or repr(error))
    return Outcome(task.step, name, None, time.monotonic() - begun)


def _hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


if __name__ == "__main__":
    main(int(sys.argv[1]))
