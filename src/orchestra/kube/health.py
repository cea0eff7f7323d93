"""Is it alive, is it ready, what does it count: three pages for kubelets and Prometheus."""

import asyncio
import time
from collections.abc import Callable

from aiohttp import web

from orchestra.kube.metrics import SECONDS, Metrics

_BEAT_SECONDS = 1.0
_DEAD_SECONDS = 30.0

Check = Callable[[], str | None]
"""None when all is well, else what is wrong."""


class Health:
    """`/healthz`: the event loop turns. `/readyz`: all checks are content. `/metrics`: Prometheus' text."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._checks: dict[str, Check] = {}
        self._beat = clock()
        self._lag = metrics.histogram(
            "event_loop_lag_seconds", "How late the event loop's heartbeat was.", bounds=SECONDS
        ).labels()

    def add_check(self, name: str, check: Check) -> None:
        """One more condition of readiness."""
        self._checks[name] = check

    def alive(self) -> str | None:
        """What is wrong with the event loop, if anything. A loop that hangs for good cannot even answer."""
        silent = self._clock() - self._beat
        return None if silent < _DEAD_SECONDS else f"the event loop has not turned for {silent:.0f} s"

    def ready(self) -> list[str]:
        """What is not ready yet, or no more."""
        return [f"{name}: {problem}" for name, check in self._checks.items() if (problem := check()) is not None]

    async def run(self, host: str, port: int, *, on_listening: Callable[[int], None] = lambda _port: None) -> None:
        """Serve until cancelled; port 0 takes a free one, which `on_listening` is told."""
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._show_metrics)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            on_listening(runner.addresses[0][1])
            await self._heartbeat()
        finally:
            await runner.cleanup()

    async def _heartbeat(self) -> None:
        while True:
            before = self._clock()
            await asyncio.sleep(_BEAT_SECONDS)
            self._beat = self._clock()
            self._lag.observe(max(0.0, self._beat - before - _BEAT_SECONDS))

    async def _healthz(self, _: web.Request) -> web.Response:
        problem = self.alive()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        problems = self.ready()
        return web.Response(text="\n".join(problems) or "ok", status=503 if problems else 200)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})
