"""Plain calls into an event loop of its own: commands wait, the kube client does not."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

A = TypeVar("A")


class Bridge:
    """One event loop in one thread, started by the first call. Any thread may call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, work: Coroutine[Any, Any, A]) -> A:
        """The result of a coroutine. Whoever is interrupted (^C) while waiting cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, batches: AsyncGenerator[Sequence[A], None]) -> Iterator[A]:
        """The items of batches as they come. Leaving early ends the generator too."""
        try:
            while True:
                batch = self.run(_next(batches))
                if batch is None:
                    return
                yield from batch
        finally:
            with contextlib.suppress(RuntimeError):  # closed already, together with its loop
                self.run(batches.aclose())

    def close(self, last: Callable[[], Awaitable[None]]) -> None:
        """Ends whatever still runs (somebody pressed ^C), does a last thing, and ends the thread."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(_end(last), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="kube")
                self._thread.start()
            return self._loop


async def _end(last: Callable[[], Awaitable[None]]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await last()


async def _next(batches: AsyncGenerator[Sequence[A], None]) -> Sequence[A] | None:
    return await anext(batches, None)
