"""Leader election by a Lease.

Coordination, not fencing: a leader that was frozen may send one more request after it was replaced. Deterministic names
and UIDs make that harmless; the write guard (`leading`) makes it rare.
"""

import asyncio
import datetime
import logging
import random
import time
from collections.abc import Awaitable, Callable

import msgspec

from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError, KubeError
from orchestra.kube.objects import LEASES, Key, Metadata, Slim

_log = logging.getLogger(__name__)


class LeadershipLost(Exception):
    """We are not the leader any more. The work was cancelled and has ended; the process should end too."""


class LeaseOptions(msgspec.Struct, frozen=True):
    """Seconds. A leader that cannot renew stops working well before others may start."""

    duration: float = 15.0
    renew: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.retry < self.renew < self.duration:
            raise ValueError(f"a lease needs retry < renew < duration, not {self}")


class LeaseSpec(Slim, frozen=True):
    """What the Lease says."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Slim, frozen=True):
    """The object."""

    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


class Watched:
    """When another's lease ends, by our own clock alone: what its clock says is not believed."""

    def __init__(self, default_duration: float) -> None:
        self._default = default_duration
        self._spec: LeaseSpec | None = None
        self._since = 0.0

    def see(self, spec: LeaseSpec, now: float) -> None:
        """Note what the lease says; each renewal starts the time anew."""
        if spec != self._spec:
            self._spec, self._since = spec, now

    def free(self, now: float) -> bool:
        """Whether it may be taken: released, or not renewed for its whole duration while we watched."""
        if self._spec is None:
            return False
        if not self._spec.holder_identity:
            return True
        return now - self._since >= (self._spec.lease_duration_seconds or self._default)


class Elector:
    """One candidate. The identity must be this process's alone."""

    def __init__(
        self,
        client: Client,
        key: Key,
        identity: str,
        *,
        options: LeaseOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.name = str(key)
        self._client = client
        self._key = key
        self._options = options or LeaseOptions()
        self._clock = clock
        self._watched = Watched(self._options.duration)
        self._renewed: float | None = None  # when the last successful request was begun
        self._held: Lease | None = None

    def leading(self) -> bool:
        """Whether we lead now. Correct even when this process was frozen a moment ago: it reads the clock."""
        return self._renewed is not None and self.left() > 0

    def left(self) -> float:
        """Seconds until we must have renewed."""
        return 0.0 if self._renewed is None else self._renewed + self._options.renew - self._clock()

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait to become the leader, work, and release the lease when the work has ended; it is renewed until then,
        also while the work of a cancelled leader ends.

        LeadershipLost when it could not be renewed: the work has been cancelled and awaited by then.
        """
        await self._acquire()
        working = asyncio.ensure_future(work())
        holding = asyncio.create_task(self._hold())
        try:
            await asyncio.wait({working, holding}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            await asyncio.wait({working})
            holding.cancel()
            await asyncio.wait({holding})
            if self.leading():
                await self._release()
        for task in (holding, working):
            if not task.cancelled():
                task.result()  # an error is the caller's to see, and a lost lease before its consequences

    async def _acquire(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._options.renew):
                    if await self._try_to_acquire():
                        _log.info("%s leads by lease %s", self.identity, self._key)
                        return
            except (KubeError, TimeoutError) as error:
                _log.warning("lease %s: %s", self._key, error)
            await asyncio.sleep(self._options.retry * random.uniform(1.0, 1.2))  # noqa: S311 - no secret

    async def _try_to_acquire(self) -> bool:
        began = self._clock()
        try:
            lease = await self._client.get_urgently(LEASES, self._key, Lease)
        except ApiError as error:
            if not error.not_found:
                raise
            return await self._create(began)
        self._watched.see(lease.spec, self._clock())
        if lease.spec.holder_identity != self.identity and not self._watched.free(self._clock()):
            return False
        return await self._put(lease, self._record(lease.spec, acquired=True), began)

    async def _create(self, began: float) -> bool:
        body = Lease(
            metadata=Metadata(name=self._key.name, namespace=self._key.namespace),
            spec=self._record(LeaseSpec(), acquired=True),
        )
        try:
            made = await self._client.create_urgently(LEASES, self._key.namespace, body)
        except ApiError as error:
            if error.already_exists:
                return False
            raise
        self._held, self._renewed = Lease(metadata=made.metadata, spec=body.spec), began
        return True

    async def _put(self, lease: Lease, spec: LeaseSpec, began: float) -> bool:
        """Write it if nobody else did since we read it."""
        body = Lease(metadata=lease.metadata, spec=spec)
        try:
            self._held = await self._client.replace(LEASES, self._key, body, Lease, urgent=True)
        except ApiError as error:
            if error.conflict:
                return False
            raise
        self._renewed = began
        return True

    async def _hold(self) -> None:
        """Renew until that fails for too long."""
        options = self._options
        while True:
            await asyncio.sleep(min(options.retry, max(0.0, self.left())))
            left = self.left()
            if left <= 0:
                self._renewed = None
                raise LeadershipLost(f"lease {self._key} could not be renewed within {options.renew:g} s")
            try:
                # Half of the time at most for one request: a dead connection must leave room for a second try.
                async with asyncio.timeout(min(left, options.renew / 2)):
                    await self._renew()
            except (KubeError, TimeoutError) as error:
                _log.warning("lease %s, %.1f s left: %s", self._key, self.left(), error or "no answer")

    async def _renew(self) -> None:
        began = self._clock()
        if self._held is not None and await self._put(self._held, self._record(self._held.spec), began):
            return
        # Somebody wrote it: perhaps we ourselves, by a request whose answer never came.
        self._held = None
        try:
            lease = await self._client.get_urgently(LEASES, self._key, Lease)
        except ApiError as error:
            if error.not_found and await self._create(began):
                return
            raise
        if lease.spec.holder_identity != self.identity:
            self._renewed = None
            raise LeadershipLost(f"lease {self._key} was taken by {lease.spec.holder_identity or 'nobody'}")
        await self._put(lease, self._record(lease.spec), began)

    async def _release(self) -> None:
        """Let the next one start at once. Best effort: a lease that is not released ends by itself."""
        left, self._renewed = self.left(), None
        try:
            async with asyncio.timeout(min(left, self._options.renew / 2)):  # as a renewal: a busy server answers late
                # A renewal that was cut off may have been written: then what we hold is old, and read again.
                if await self._let_go(self._held) or await self._let_go(None):
                    _log.info("%s released lease %s", self.identity, self._key)
        except (KubeError, TimeoutError) as error:
            _log.warning("lease %s was not released: %s", self._key, error or "no answer")

    async def _let_go(self, lease: Lease | None) -> bool:
        if lease is None:
            lease = await self._client.get_urgently(LEASES, self._key, Lease)
        if lease.spec.holder_identity != self.identity:
            return False
        spec = msgspec.structs.replace(lease.spec, holder_identity="", lease_duration_seconds=1, renew_time=_now())
        try:
            await self._client.replace(LEASES, self._key, Lease(metadata=lease.metadata, spec=spec), Lease, urgent=True)
        except ApiError as error:
            if not error.conflict:
                raise
            return False
        return True

    def _record(self, before: LeaseSpec, *, acquired: bool = False) -> LeaseSpec:
        now = _now()
        changed_hands = acquired and before.holder_identity != self.identity and before.acquire_time is not None
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=max(1, round(self._options.duration)),
            acquire_time=now if acquired else before.acquire_time,
            renew_time=now,
            lease_transitions=(before.lease_transitions or 0) + changed_hands,
        )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
