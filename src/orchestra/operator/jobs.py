"""The TorchrunJob controller: observe, decide, execute, one status write, events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from orchestra.api.base import to_builtins
from orchestra.api.job import TorchrunJob, TorchrunJobSpec
from orchestra.api.kubernetes import ObjectMeta
from orchestra.api.labels import GENERATION_ANNOTATION, RESTART_ANNOTATION
from orchestra.api.problem import Invalid, Problem
from orchestra.kube.cache import Cache, Change
from orchestra.kube.client import Client
from orchestra.kube.controller import Result
from orchestra.kube.errors import ApiError, KubeError
from orchestra.kube.events import EventRecorder, ObjectReference
from orchestra.kube.expectations import Expectations
from orchestra.kube.objects import PODS, Key, Metadata, MetadataOnly, by_controller, by_namespace
from orchestra.kube.status import StatusWriter
from orchestra.kube.writes import Child, Creation, NotOurs, Replaced, create_children, delete_owned, together
from orchestra.operator import filling
from orchestra.operator.accepted import effective, started_with
from orchestra.operator.attempt import agent_child, filling_children, pod_children, restarts_left, shared_children
from orchestra.operator.claims import StorageClass, adapted, as_started, is_kept, waited_for
from orchestra.operator.decide import decide
from orchestra.operator.decision import Decision, Observation, Told
from orchestra.operator.etcd import USUAL as USUAL_ETCD
from orchestra.operator.etcd import Etcd
from orchestra.operator.freshness import SOON, Freshness
from orchestra.operator.gang_reader import GangReader
from orchestra.operator.half_gangs import Rival, Seniority, looks_for_rivals, may_be_rival, rival
from orchestra.operator.kinds import CANCEL_ANNOTATION, JOBS, ROLE_LABEL, JobObject, PodObject, QueueObject
from orchestra.operator.life_signs import NodeWatch
from orchestra.operator.lost_nodes import NODE_LOST_SECONDS, Losses
from orchestra.operator.moving import WORKSPACE_URL
from orchestra.operator.pace import SETTLE, can_wait
from orchestra.operator.plans import Plans
from orchestra.operator.pods import PodOptions
from orchestra.operator.progress import ProgressBoard
from orchestra.operator.queueing.lines import Lines
from orchestra.operator.queueing.lookup import QueueLookup
from orchestra.operator.quotas import QuotaObject
from orchestra.operator.refusals import Refused, refusal_of, refusal_of_creation
from orchestra.operator.starting import refused
from orchestra.operator.stops import stop_owned
from orchestra.operator.storage import Storage
from orchestra.plan import Plan, status

_WIDE = 32  # creates at once: one of them has just been through a dry run
_REPLACE_AGAIN = 30.0  # seconds until a refused addition to an elastic job is asked for again


class JobController:
    """Brings one job after the other in line."""

    def __init__(
        self,
        client: Client,
        jobs: Cache[JobObject],
        lookup: QueueLookup,
        lines: Lines,
        pods: Cache[PodObject],
        events: EventRecorder,
        board: ProgressBoard,
        *,
        nodes: NodeWatch | None = None,
        quotas: Cache[QuotaObject] | None = None,
        etcd: Etcd = USUAL_ETCD,
        moved_by: tuple[str, str] = ("", WORKSPACE_URL),
        classes: Cache[StorageClass] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._jobs, self._lookup, self._lines = client, jobs, lookup, lines
        self._pods_of = pods.index(by_controller)
        self._may_wait = jobs.index(lambda job: (may_be_rival(bytes(job.status)),))
        self._expected: Expectations[PodObject] = Expectations(pods)
        self._statuses = StatusWriter(client, JOBS)
        self._fresh = Freshness(client, self._statuses)
        jobs.listen(self._forget)
        self._events, self._board, self._nodes = events, board, nodes
        self._clock, self._etcd, self._moved_by = clock, etcd, moved_by
        self._plans = Plans(etcd.endpoint)
        self._agents: set[str] = set()
        self._agent_gates: dict[str, asyncio.Lock] = {}
        self._quotas_of = quotas.index(by_namespace) if quotas is not None else None
        self._groups = GangReader(client)
        self._storage = Storage(client, classes)

    async def reconcile(self, key: Key) -> Result | None:
        """One look at one job."""
        found = self._jobs.get(key)
        if found is None or found.metadata.deletion_timestamp is not None:
            return None  # children go by their owner references
        uid = found.metadata.uid
        if not self._expected.satisfied(uid):
            return Result(self._expected.expire_in(uid))
        if self._fresh.behind(found):
            return Result(SOON)
        seen = self._observe(found)
        if await self._storage.learn(seen):
            seen = self._observe(found, claims_refused=True)
        seen = await self._groups.look(seen)
        seen = self._with_place(found, seen)  # in one breath with the decision: two must not get the same room
        decision = decide(seen, self._clock())
        if self._fresh.doubtful(found, seen.all_pods, decision):
            if not await self._fresh.confirm(found, seen.all_pods):
                return Result(SOON)
            seen = self._with_place(found, seen)
            decision = decide(seen, self._clock())
        self._lines.decided(
            found, starts=decision.status.attempt if decision.create else None, phase=decision.status.phase
        )
        try:
            await self._execute(found, seen, decision)
        except TryLater as later:
            return Result(later.seconds)
        again = self._storage.look_again(seen) if not seen.claims_refused else None
        times = [one for one in (decision.look_again, again) if one is not None]
        return Result(max(0.1, min(times))) if times else None

    def _observe(self, found: JobObject, *, claims_refused: bool = False) -> Observation:
        meta = found.metadata
        mine = tuple(self._pods_of.get(meta.uid))
        pods = tuple(pod for pod in mine if pod.label(ROLE_LABEL) != filling.ROLE)
        problems: list[Problem] = []
        try:
            spec = found.read_spec()
        except msgspec.ValidationError as error:  # what no schema can say: `command` is neither a string nor a list
            problems = [Problem("spec", str(error))]
            spec = TorchrunJobSpec(job_queue="", command="")
        job = TorchrunJob(
            metadata=ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid, generation=meta.generation),
            spec=spec,
            status=found.read_status(),
        )
        job, not_taken = effective(job)
        found_queue = self._lookup.queue_of(found)
        made, waits_for = None, tuple[str, ...]()
        if found_queue is not None and not problems:
            attempt = max(1, status.status_of(job).attempt or 1)
            made, problems = self._planned(found_queue, job, meta.uid, attempt, anew=claims_refused)
            waits_for = waited_for(made) if made is not None else ()
        return Observation(
            job=job,
            plan=made,
            problems=tuple(problems),
            queue_missing=found_queue is None and not problems,
            pods=pods,
            progress=self._board.progress(meta.uid),
            in_place=self._board.in_place(meta.uid, status.status_of(job).attempt),
            progress_silence=self._board.silence(meta.uid),
            generation=meta.generation,
            sync_pod=next((pod for pod in mine if pod.label(ROLE_LABEL) == filling.ROLE), None),
            restart_attempt=annotated_number(meta, RESTART_ANNOTATION),
            cancelled=CANCEL_ANNOTATION in (meta.annotations or {}),
            losses=self._nodes.losses(pods, _patience(made)) if self._nodes is not None else Losses(),
            not_taken=tuple(not_taken),
            shared_claims=waits_for,
            claims_refused=claims_refused,
            born=meta.creation_timestamp or "",
            rivals=self._rivals(found),
            quotas=tuple(self._quotas_of.get(meta.namespace)) if self._quotas_of is not None else (),
        )

    def _planned(
        self, queue: QueueObject, job: TorchrunJob, uid: str, attempt: int, *, anew: bool = False
    ) -> tuple[Plan | None, list[Problem]]:
        """The plan of an attempt, with what the storage classes can do; or why there is none.

        An attempt under way keeps what it was started with, unless it is to be planned `anew`.
        """
        try:
            made = self._plans.attempt(queue, job, uid, attempt)
        except Invalid as invalid:
            return None, invalid.problems
        except msgspec.ValidationError as error:  # an amount out of range, which no schema can say
            text = f"queue {queue.metadata.name} cannot be read: {error}"
            return None, [Problem("spec.jobQueue", text, "mend the queue")]
        if status.status_of(job).phase in ("Provisioning", "Running") and not anew:
            return as_started(started_with(made, job), job), []
        made, problems = adapted(made, self._storage.knowledge)
        return (None, problems) if problems else (made, [])

    def _with_place(self, found: JobObject, seen: Observation) -> Observation:
        queue = self._lookup.queue_of(found) if seen.plan is not None else None
        return replace(seen, place=self._lines.place_of(found, queue)) if queue is not None else seen

    def _forget(self, change: Change[JobObject]) -> None:
        """A job is gone: nothing of it is to stay in memory."""
        if change.new is None and change.old is not None:
            self._statuses.forget(change.old.metadata.uid)
            self._expected.forget(change.old.metadata.uid)
            self._fresh.forget(change.old.metadata.uid)

    def _rivals(self, found: JobObject) -> tuple[Rival, ...]:
        """Other jobs that wait for places. Looked for only by a job that waits for places itself."""
        if not looks_for_rivals(bytes(found.status)):
            return ()
        others = (
            rival(Seniority(other.metadata.creation_timestamp or "", other.metadata.uid), other.read_status())
            for other in self._may_wait.get(True)
            if other.metadata.uid != found.metadata.uid
        )
        return tuple(one for one in others if one is not None)

    # ---- acting

    async def _execute(self, found: JobObject, seen: Observation, decision: Decision) -> None:
        """The status first where a new attempt begins (it must be known before its pods), else last."""
        meta = found.metadata
        if decision.delete_job:
            await self._client.delete(JOBS, meta.key, uid=meta.uid)
            return
        prepared = None
        if decision.fill:
            await self._fill(found, seen)
        if decision.create or decision.replace:
            try:
                prepared = await self._prepare(found, seen, decision)
            except Refused as no:
                await self._give_up(found, seen, decision, no)
        elif can_wait(seen, decision) and (left := self._statuses.younger_than(meta.uid, SETTLE)):
            raise TryLater(left)
        if not await self._write(found, decision):
            return
        for pod in decision.delete:
            await delete_owned(
                self._client,
                PODS,
                pod.metadata,
                owner_uid=meta.uid,
                grace_seconds=decision.delete_grace,
                expectations=self._expected,
            )
        for pod in decision.stop:
            await stop_owned(self._client, pod, owner_uid=meta.uid, expectations=self._expected)
        if prepared:
            await self._create(found, seen, decision, prepared)

    async def _write(self, found: JobObject, decision: Decision) -> bool:
        """The status and its events; False when another job has the name now: ours is gone, and its children."""
        # Read and written by the same types: the defaults that the server fills in are no difference.
        observed, wanted = to_builtins(found.read_status()), to_builtins(decision.status)
        before = _attempt(observed)
        try:
            await self._statuses.write(
                found.metadata, observed, wanted, guarded=decision.guarded, still=lambda now: _attempt(now) == before
            )
        except Replaced:
            return False
        for event in decision.events:
            self._tell(found, event)
        return True

    async def _prepare(self, found: JobObject, seen: Observation, decision: Decision) -> list[Child]:
        """All that must be there or be found out before the first pod; answers the pods that are missing.

        Before the status says that there is a new attempt: what is refused here has not been one.
        """
        meta, attempt = found.metadata, decision.status.attempt or 1
        found_queue = self._lookup.queue_of(found)
        if found_queue is None:
            return []
        job = msgspec.structs.replace(seen.job, status=decision.status)
        made, problems = self._planned(found_queue, job, meta.uid, attempt)
        if made is None:
            raise Refused("Invalid", "; ".join(str(problem) for problem in problems))
        sees_nodes = self._nodes is not None and self._nodes.readable
        left = restarts_left(made, job)
        image, url = self._moved_by
        options = PodOptions(
            sees_nodes=sees_nodes, failures_left=left, etcd_image=self._etcd.image, image=image, workspace_url=url,
            code_generation=annotated_number(meta, GENERATION_ANNOTATION),
        )  # fmt: skip
        children = pod_children(made, meta, attempt, further=decision.replace, options=options)
        there = {pod.metadata.name for pod in seen.pods}
        missing = [child for child in children if child.key.name not in there]
        try:
            await self._ensure_agent(meta.namespace)
            wanted = shared_children(made, meta, attempt)
            shared = await together(
                create_children(self._client, wanted, owner_uid=meta.uid, start=len(wanted)), self._dry_run(missing)
            )
            await self._check_shared(found, shared, made)
        except ApiError as error:
            no = refusal_of([error])
            if no is None:
                raise
            raise no from error
        return missing

    async def _fill(self, found: JobObject, seen: Observation) -> None:
        """The workspace's claim and the pod that fills it."""
        meta, made = found.metadata, seen.plan
        if made is None:
            return
        options = PodOptions(sees_nodes=False, image=self._moved_by[0], workspace_url=self._moved_by[1])
        *claims, pod = filling_children(made, meta, options)
        for children, expected in ((claims, None), ([pod], self._expected)):  # only pods are waited for
            created = await create_children(self._client, children, owner_uid=meta.uid, expectations=expected)
            no = refusal_of_creation(created)
            if no is not None:
                await self._give_up(found, seen, Decision(status.status_of(seen.job)), no)
            if not created.complete:
                raise KubeError(_refusal(created))

    async def _create(self, found: JobObject, seen: Observation, decision: Decision, missing: list[Child]) -> None:
        """The pods, all or none: a no half-way takes back what was made of this attempt."""
        meta = found.metadata
        created = await create_children(
            self._client, missing, owner_uid=meta.uid, expectations=self._expected, start=_WIDE
        )
        if created.complete:
            return
        no = refusal_of_creation(created)
        if no is None:
            raise KubeError(_refusal(created))
        begun = msgspec.structs.replace(seen.job, status=decision.status)
        made = [one.metadata for one in created.outcomes if not isinstance(one, NotOurs)]
        await self._give_up(found, replace(seen, job=begun), decision, no, made)

    async def _give_up(
        self,
        found: JobObject,
        seen: Observation,
        decision: Decision,
        no: Refused,
        made: Sequence[Metadata] = (),
    ) -> None:
        """Never half a gang that holds GPUs: the pods go first, then the status says why.

        Workers that an elastic job wanted besides are another matter: those that train go on.
        """
        if decision.replace:
            gone = {one.uid: one for one in made}
        else:
            attempt = status.status_of(seen.job).attempt
            mine = (pod.metadata for pod in seen.pods if pod.attempt == attempt and not pod.ended)
            gone = {one.uid: one for one in (*mine, *made)}
        for pod in gone.values():
            await delete_owned(self._client, PODS, pod, owner_uid=found.metadata.uid, expectations=self._expected)
        if decision.replace:
            self._tell(found, Told(no.reason, no.message, "Warning"))
            raise TryLater(_REPLACE_AGAIN)
        told = refused(seen, no.reason, no.message, self._clock())
        self._lines.decided(found, starts=None, phase=told.status.phase)
        await self._write(found, told)
        raise TryLater(told.look_again or 0.0)

    async def _check_shared(self, found: JobObject, creation: Creation, made: Plan) -> None:
        """A retained claim of an earlier job of this name is mounted without being owned; nothing else is shared."""
        kept = [one for one in creation.strangers if is_kept(one.metadata, made)]
        for one in kept:
            user = await self._storage.user_of(one.metadata.namespace, one.metadata.name, found.metadata.uid)
            if user is not None:
                raise Refused(
                    "ClaimInUse", f"claim {one.metadata.name} was kept for this job, but {user} has mounted it"
                )
        strangers = [one for one in creation.strangers if one not in kept]
        no = refusal_of_creation(creation, strangers)
        if no is not None:
            raise no
        if creation.errors:
            raise KubeError(_refusal(creation))

    async def _dry_run(self, children: list[Child]) -> None:
        """One pod through the server's own checks before the first of many: quota, limits, pod security."""
        if len(children) > 1:
            first = children[-1]
            await self._client.create(first.resource, first.key.namespace, first.body, MetadataOnly, dry_run=True)

    async def _ensure_agent(self, namespace: str) -> None:
        """Once a namespace: jobs that come together wait for the one that asks, since the agent is not small."""
        async with self._agent_gates.setdefault(namespace, asyncio.Lock()):
            if namespace in self._agents:
                return
            child = agent_child(namespace)
            try:
                await self._client.create(child.resource, namespace, child.body, MetadataOnly)
            except ApiError as error:
                if not error.already_exists:
                    raise
            self._agents.add(namespace)

    def _tell(self, found: JobObject, event: Told) -> None:
        regarding = ObjectReference.to(JOBS, found.metadata)
        self._events.emit(regarding, reason=event.reason, note=event.message, type=event.type)


class TryLater(Exception):
    """The server said no, and the job's status says so, or what there is to say can wait: look again then."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"again in {seconds:g} s")


def _patience(made: Plan | None) -> float:
    seconds = made.lifecycle.node_lost_seconds if made is not None else None
    return float(seconds if seconds is not None else NODE_LOST_SECONDS)


def _attempt(told: Any) -> tuple[Any, Any]:
    """How far a status says that the job is."""
    return (told or {}).get("attempt") or 0, (told or {}).get("phase")


def annotated_number(meta: Metadata, name: str) -> int:
    """A number that somebody wrote on a job; 0 for anything else."""
    text = (meta.annotations or {}).get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _refusal(creation: Creation) -> str:
    reasons = [str(error) for _, error in creation.errors] + [str(stranger) for stranger in creation.strangers]
    return "; ".join(reasons) or f"{creation.untried} objects were not created"
