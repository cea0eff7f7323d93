"""What to do about one job: pure, from what was observed and the time.

`decide` never looks anywhere and never waits. Its answer names the status that should be written, what is to be created
or deleted, and when to look again. Called again with the same world it gives the same answer; called after a crash in
the middle of its actions it names what is left to do.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from orchestra.api.job import Failure, Phase, RestartBudget, TorchrunJob, Workers
from orchestra.operator import accepted, claims, clocks, elastic, etcd, filling, placement, silences
from orchestra.operator.attempt import has_store
from orchestra.operator.conditions import is_true as _is_true
from orchestra.operator.conditions import with_condition as _condition
from orchestra.operator.decision import CREATED as _CREATED
from orchestra.operator.decision import Decision, Observation, Told
from orchestra.operator.decision import living as _living
from orchestra.operator.decision import told as _told
from orchestra.operator.decision import workers_first as _workers_first
from orchestra.operator.kinds import PodObject
from orchestra.operator.queueing.line import Place
from orchestra.operator.starting import half_gang_seconds, held_back, release
from orchestra.operator.verdicts import (
    outcome_of_pods,
    saved_step,
    unsent,
    why_not_running,
    with_last_words,
    with_saved,
)
from orchestra.plan import Plan, restart, status
from orchestra.plan.outcome import Outcome

_NOTHING_TO_SAVE = 5  # seconds for what a lost member leaves: without it no step can be agreed on
_WAIT_FOR_OTHERS = 5.0  # how long other workers may take to tell why they failed too


def decide(seen: Observation, now: float) -> Decision:
    """The decision about one job."""
    made = _decide(seen, now)
    times = [one for one in (made.look_again, seen.losses.look_again, clocks.due(seen, made, now)) if one is not None]
    pod = seen.sync_pod
    if pod is not None and not (pod.ended or pod.leaving or made.status.phase == "Syncing"):
        made = replace(made, delete=(*made.delete, pod))  # it fills a claim that nobody waits for
    return replace(made, look_again=min(times, default=None))


def _decide(seen: Observation, now: float) -> Decision:
    job = silences.told(_with_progress(seen), seen.progress_silence, now)
    current = status.status_of(job)
    if current.phase in status.FINISHED:
        return _finished(seen, job, now)
    if seen.cancelled:
        return _cancelling(seen, job, now)
    if seen.plan is None:
        return _not_plannable(seen, job, now)
    job = accepted.told(_valid(job, seen.plan, now), seen.not_taken, now)
    job = etcd.told(job, seen.plan, now)
    if job.spec.suspend:
        return _suspending(seen, job, now)
    if current.phase in (None, "Pending", "Syncing", "Suspended", "Queued"):
        return _start(seen, job, now)
    return _running(seen, job, seen.plan, now)


# ---- the parts of a life


def _finished(seen: Observation, job: TorchrunJob, now: float) -> Decision:
    """Ended: free what still runs, keep what holds logs, and go when the time to live is over."""
    current = status.status_of(job)
    workers, others = _alive(seen)
    ttl = clocks.time_to_live(seen)
    ended = status.seconds_of(current.completion_time)
    if ttl is None or ended is None:
        return Decision(current, stop=workers, delete=() if workers else others)
    return Decision(
        current,
        stop=workers,
        delete=() if workers else others,  # ranks that save still need the store
        delete_job=ended + ttl <= now,
    )


def _cancelling(seen: Observation, job: TorchrunJob, now: float) -> Decision:
    """Stopped gracefully, as for a suspension, but for good; the pods stay for their logs."""
    current = status.status_of(job)
    workers = _living(seen, (pod for pod in seen.pods if pod.is_worker))
    if workers:
        asked = _told(job, current.phase or "Pending", "Cancelling", "saving and stopping", now)
        return replace(asked, stop=tuple(pod for pod in workers if not pod.leaving))
    mine = tuple(pod for pod in seen.pods if pod.is_worker and pod.attempt == current.attempt)
    saved = saved_step(mine)
    words = f"saved at step {saved}" if saved is not None else "nothing more was saved"
    made = _told(with_last_words(job, mine), "Failed", "Cancelled", f"cancelled; {words}", now)
    return replace(made, delete=_alive(seen)[1])


def _not_plannable(seen: Observation, job: TorchrunJob, now: float) -> Decision:
    """Its queue is missing, or it cannot run on it: it waits with the reason, and nothing is created."""
    current = status.status_of(job)
    here = tuple(pod for pod in seen.pods if not pod.leaving)
    if current.phase in ("Provisioning", "Running") and not seen.claims_refused:  # what runs goes on
        reason = "its queue is gone" if seen.queue_missing else "; ".join(str(problem) for problem in seen.problems)
        return Decision(status.status_of(_condition(job, "Valid", "False", "Unplannable", reason, now)))
    if seen.claims_refused:
        job = _condition(job, _CREATED, "False", "ClaimRefused", "nothing of this attempt was kept", now)
    if seen.queue_missing:
        message = f"there is no TorchrunQueue {job.spec.job_queue} in this namespace or the shared one"
        return _told(job, "Pending", "QueueNotFound", message, now, warning=True)
    message = "; ".join(str(problem) for problem in seen.problems)
    job = _condition(job, "Valid", "False", "Invalid", message, now)
    told = _told(job, "Pending", "Invalid", message, now, warning=True)
    return replace(told, delete=here if seen.claims_refused else ())


def _suspending(seen: Observation, job: TorchrunJob, now: float) -> Decision:
    """Stop gracefully: deleting a pod sends its agent a stop, which saves first. Then rest."""
    job = with_saved(job, seen.job, tuple(pod for pod in seen.pods if pod.is_worker))
    if any(not seen.losses.is_lost(pod) for pod in seen.pods):
        asked = _told(job, status.status_of(job).phase or "Running", "Suspending", "saving and stopping", now)
        return replace(asked, delete=_workers_first(seen, seen.pods))
    progress = status.status_of(job).progress
    step = progress.checkpoint_step if progress else None
    saved = f"saved at step {step}" if step is not None else "nothing was saved"
    job = _condition(job, _CREATED, "False", "Suspended", "no attempt is running", now)
    return _told(job, "Suspended", "Suspended", saved, now)


def _start(seen: Observation, job: TorchrunJob, now: float) -> Decision:
    """A new attempt, once nothing of an older one runs any more and the pause is over."""
    current = status.status_of(job)
    older = _living(seen, seen.pods)
    if older:
        waiting = _workers_first(seen, older)
        if current.phase == "Queued":  # what it says about why it waits matters more
            return Decision(current, delete=waiting)
        places = ", ".join(f"{pod.metadata.name} on {pod.spec.node_name or 'no node'}" for pod in older[:8])
        text = f"{len(older)} pods of an older attempt are ending: {places}"
        return replace(_told(job, "Pending", "WaitingForOldPods", text, now), delete=waiting)
    not_before = status.seconds_of(current.budget.not_before) if current.budget else None
    if not_before is not None and now < not_before:
        return Decision(current, look_again=not_before - now)
    attempt = (current.attempt or 0) + 1
    plan = seen.plan
    if plan is None:
        return Decision(current)
    if (first := filling.needed(seen, job, plan, now)) is not None:
        return first
    if seen.place is not None and not seen.place.may_start:
        return _in_line(job, plan, seen.place, now)
    held = held_back(seen, job, plan, now)
    if held is not None:
        return held
    job = status.with_status(status.sized(job, plan), attempt=attempt, accepted=accepted.values(job.spec))
    count = elastic.wanted(plan)
    job = _condition(job, _CREATED, "False", "Creating", f"creating {count} workers", now)
    job = claims.told(placement.starting(job, plan, now), plan, now)
    size = f"{f'{plan.min_nodes} to {count}' if plan.elastic else count} x {plan.procs_per_node} processes"
    outdated = tuple(pod for pod in seen.pods if pod.attempt < attempt - 1)
    return replace(
        _told(job, "Provisioning", "Starting", f"attempt {attempt}: {size}", now), create=True, delete=outdated
    )


def _in_line(job: TorchrunJob, plan: Plan, place: Place, now: float) -> Decision:
    """Not its turn yet. Its place is told by the status; an event only tells that it began to wait."""
    current, before = status.status_of(job), status.phase_condition(job)
    pending = plan.lifecycle.pending_timeout_seconds
    since = placement.waiting_since(job) if current.phase == "Queued" else now
    left = since + pending - now if pending is not None and since is not None else None
    if left is not None and left <= 0:
        text = f"not running after {pending} s: {place.message}"
        return _told(job, "Failed", "PendingTimeout", text, now, warning=True)
    job = _condition(status.sized(job, plan), placement.SCHEDULED, "False", place.reason, place.message, now)
    told = _told(job, "Queued", place.reason, place.message, now)
    began = current.phase != "Queued" or before is None or before.reason != place.reason
    times = [one for one in (left, place.look_again) if one is not None]
    return replace(told, events=told.events if began else (), look_again=min(times, default=None))


def _running(seen: Observation, job: TorchrunJob, plan: Plan, now: float) -> Decision:
    """An attempt is under way: complete it, watch it, end it."""
    current = status.status_of(job)
    workers = tuple(pod for pod in seen.pods if pod.is_worker and pod.attempt == current.attempt)
    job = _count(job, plan, workers)
    if seen.claims_refused:
        words = "its storage class cannot share a volume among nodes: starting again without that claim"
        told = _told(job, "Pending", "ClaimRefused", words, now, warning=True)
        return replace(told, delete=tuple(pod for pod in seen.pods if not pod.leaving))
    strays = _living(seen, (pod for pod in seen.pods if pod.attempt != current.attempt))
    created = _is_true(job, _CREATED)
    if any(not (created and pod.leaving) for pod in strays):  # whatever brought them about: never two live copies
        return Decision(status.status_of(job), delete=tuple(pod for pod in strays if not pod.leaving))
    if not created:
        store = not has_store(plan) or any(not pod.is_worker and pod.attempt == current.attempt for pod in seen.pods)
        whole = store and len(workers) >= elastic.wanted(plan)
        if not whole and not any(pod.leaving for pod in workers):
            return Decision(status.status_of(job), create=True, look_again=5.0)
        job = _condition(job, _CREATED, "True", "Created", "all workers were created", now)
    late = clocks.past_deadline(seen, status.status_of(job), now)
    if late is not None:
        return replace(_told(job, "Failed", "DeadlineExceeded", late, now, warning=True), stop=_alive(seen)[0])
    if elastic.outdated(workers, plan):
        size = f"{plan.min_nodes} to {plan.max_nodes}" if plan.elastic else str(plan.node_count)
        return _anew(seen, job, "Resized", f"saving and starting again with {size} nodes", now)
    if seen.restart_attempt and seen.restart_attempt == current.attempt:
        return _anew(seen, job, "Restarting", "asked for: saving and starting all workers anew", now)
    outcome = _outcome(seen, job, plan, workers, now)
    if outcome is None and plan.elastic:
        fewer = _replacing(seen, job, plan, workers, now)
        if fewer is not None:
            return fewer
    if outcome is None:
        return _progressing(seen, job, plan, workers, now)
    if isinstance(outcome, float):  # seconds to wait for the others' last words
        return Decision(status.status_of(job), look_again=outcome)
    job = with_last_words(job, workers)
    if not plan.elastic:  # there, rounds after the loss of a member are free, and only agents tell them apart
        outcome = replace(outcome, restarts=max(outcome.restarts, seen.in_place))
    job = status.with_status(job, restarts=(current.restarts or 0) + outcome.restarts)
    if outcome.state == "done":
        rest = tuple(pod for pod in seen.pods if not pod.ended and not pod.leaving)
        missing = unsent(workers)
        words = f"all ranks are done; not all outputs are in the store: {missing}" if missing else "all ranks are done"
        told = _told(status.failed(job, None), "Succeeded", "NotSynced" if missing else "Done", words, now,
                     warning=missing is not None)  # fmt: skip
        return replace(told, delete=rest)
    return _after_failure(seen, job, plan, outcome, now)


def _outcome(
    seen: Observation, job: TorchrunJob, plan: Plan, workers: tuple[PodObject, ...], now: float
) -> Outcome | float | None:
    """How the attempt ended; seconds to wait for the last words of others; None while it goes on."""
    lost = _lost_member(seen, plan, workers)
    if lost is not None:
        return lost
    if not plan.elastic:
        return outcome_of_pods(workers, plan.node_count, now, _WAIT_FOR_OTHERS)
    running = status.status_of(job).phase == "Running"
    crew = elastic.crew_of(workers, seen.losses)
    return elastic.outcome(crew, plan, running=running, now=now, patience=_WAIT_FOR_OTHERS)


def _lost_member(seen: Observation, plan: Plan, workers: tuple[PodObject, ...]) -> Outcome | None:
    """A worker or the store is gone for good, and the others wait for it in vain.

    Those of an elastic job too: a node that falls silent closes no connection.
    """
    lost = [pod for pod in workers if seen.losses.is_lost(pod) and (not plan.elastic or pod.status.phase == "Running")]
    if lost:
        return Outcome("lost", failure=Failure(reason="NodeLost", message=seen.losses.lost[lost[0].metadata.uid]))
    if not has_store(plan) or all(pod.ended for pod in workers):
        return None
    attempt = status.status_of(seen.job).attempt
    stores = [pod for pod in seen.pods if not pod.is_worker and pod.attempt == attempt]
    if any(not (pod.ended or pod.leaving or seen.losses.is_lost(pod)) for pod in stores):
        return None
    return Outcome("lost", failure=Failure(reason="StoreLost", message="the rendezvous store is gone"))


def _anew(seen: Observation, job: TorchrunJob, reason: str, words: str, now: float) -> Decision:
    """Its elastic range or its environment was changed: save, and start again. Nobody's fault, and no pause."""
    told = _told(job, "Pending", reason, words, now)
    return replace(told, delete=_workers_first(seen, (pod for pod in seen.pods if not pod.ended)))


def _replacing(
    seen: Observation, job: TorchrunJob, plan: Plan, workers: tuple[PodObject, ...], now: float
) -> Decision | None:
    """New workers for those that an elastic job has lost while the others go on. Free, with the pause of all losses."""
    count = elastic.missing(elastic.crew_of(workers, seen.losses), plan)
    if not count:
        return None
    current = status.status_of(job)
    used = current.budget or RestartBudget()
    not_before = status.seconds_of(used.not_before) or 0.0
    if now < not_before:
        return replace(_progressing(seen, job, plan, workers, now), look_again=not_before - now)
    verdict, newest = _verdict(job, plan, Outcome("lost"))
    if isinstance(verdict, restart.GiveUp):
        return None
    before = current.workers or Workers()
    first = max(before.created, elastic.wanted(plan), *(pod.index + 1 for pod in workers))
    job = status.with_status(job, workers=msgspec.structs.replace(before, created=first + count))
    job = status.with_status(job, budget=_kept(verdict, newest, now))
    going_on = _progressing(seen, job, plan, workers, now)
    lost = tuple(pod for pod in workers if seen.losses.is_lost(pod) and not pod.leaving)
    told = Told("Replacing", f"{count} of {elastic.wanted(plan)} workers are gone: new ones are created", "Warning")
    return replace(going_on, replace=tuple(range(first, first + count)), delete=lost, events=(*going_on.events, told))


def _progressing(
    seen: Observation, job: TorchrunJob, plan: Plan, workers: tuple[PodObject, ...], now: float
) -> Decision:
    placed = placement.placement(workers, plan, seen.group)
    job = placement.told(job, plan, placed, now)
    running = sum(pod.status.phase == "Running" for pod in workers)
    if running >= elastic.needed(plan):
        if plan.elastic:
            size = running + sum(
                pod.status.phase == "Succeeded" for pod in workers
            )  # who is done early was one of them
            job = status.with_status(job, nodes=size, gpus=size * plan.gpus_per_node)
        everybody = running >= elastic.wanted(plan)
        words = "all workers are running" if everybody else f"{running} of {plan.max_nodes} workers have room"
        return _told(job, "Running", "Started", words, now)
    stuck = why_not_running(workers)
    message = stuck or f"{running} of {elastic.needed(plan)} workers are running"
    hold_on = half_gang_seconds(seen, job, plan, placed, workers, now)
    if hold_on is not None and hold_on <= 0:
        return release(seen, job, plan, placed, now)
    pending = seen.plan.lifecycle.pending_timeout_seconds if seen.plan else None
    began = placement.waiting_since(job)
    if pending is not None and began is not None and status.status_of(job).phase == "Provisioning":
        left = began + pending - now
        if left <= 0:
            here = tuple(pod for pod in seen.pods if not pod.leaving)
            text = f"not running after {pending} s: {message}"
            return replace(_told(job, "Failed", "PendingTimeout", text, now, warning=True), delete=here)
        hold_on = left if hold_on is None else min(left, hold_on)
    phase: Phase = "Running" if status.status_of(job).phase == "Running" else "Provisioning"
    return replace(_told(job, phase, "Starting", message, now, news=bool(stuck)), look_again=hold_on)


def _after_failure(seen: Observation, job: TorchrunJob, plan: Plan, outcome: Outcome, now: float) -> Decision:
    verdict, newest = _verdict(job, plan, outcome)
    here = tuple(pod for pod in seen.pods if not pod.ended and not pod.leaving)
    job = status.failed(job, outcome.failure)
    words = next(iter((outcome.failure.message or "").splitlines()), "") if outcome.failure else ""
    words = words or outcome.state
    if isinstance(verdict, restart.GiveUp):
        return replace(_told(job, "Failed", verdict.reason, words, now, warning=True), delete=here)
    restarts = (status.status_of(job).restarts or 0) + int(outcome.state in ("failed", "hang"))
    job = status.with_status(job, budget=_kept(verdict, newest, now), restarts=restarts)
    told = _told(job, "Pending", verdict.reason, f"{words}; starting again in {verdict.pause:.0f} s", now, warning=True)
    saving = any(pod.leaving for pod in _living(seen, seen.pods))  # who leaves may save, and all with it
    in_vain = outcome.state == "lost" and not saving
    here = _workers_first(seen, here) if saving else here
    return replace(told, delete=here, delete_grace=_NOTHING_TO_SAVE if in_vain else None, look_again=verdict.pause)


def _verdict(job: TorchrunJob, plan: Plan, outcome: Outcome) -> tuple[restart.Retry | restart.GiveUp, int | None]:
    """What follows, and the newest checkpoint that this was decided with."""
    current = status.status_of(job)
    used = current.budget or RestartBudget()
    newest = current.progress.checkpoint_step if current.progress else None
    newer = newest is not None and (used.checkpoint_step is None or newest > used.checkpoint_step)
    budget = restart.Budget(used.spent, used.free_retries)
    return restart.after(outcome, plan.lifecycle, budget, new_checkpoint=newer), newest


def _kept(verdict: restart.Retry, newest: int | None, now: float) -> RestartBudget:
    return RestartBudget(
        spent=verdict.budget.spent,
        free_retries=verdict.budget.free_retries,
        checkpoint_step=newest,
        not_before=status.timestamp(now + verdict.pause),
    )


# ---- small steps


def _alive(seen: Observation) -> tuple[tuple[PodObject, ...], tuple[PodObject, ...]]:
    """Workers, and the others, that run and that nobody has deleted."""
    here = tuple(pod for pod in seen.pods if not pod.ended and not pod.leaving)
    return tuple(pod for pod in here if pod.is_worker), tuple(pod for pod in here if not pod.is_worker)


def _with_progress(seen: Observation) -> TorchrunJob:
    job = status.with_progress(seen.job, seen.progress) if seen.progress is not None else seen.job
    return status.with_status(job, observed_generation=seen.generation)


def _valid(job: TorchrunJob, plan: Plan, now: float) -> TorchrunJob:
    return _condition(job, "Valid", "True", "Planned", f"{plan.node_count} x {plan.procs_per_node} processes", now)


def _count(job: TorchrunJob, plan: Plan, workers: tuple[PodObject, ...]) -> TorchrunJob:
    phases = [pod.status.phase for pod in workers]
    ready = sum(any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions) for pod in workers)
    before = status.status_of(job).workers or Workers()
    counted = Workers(
        desired=elastic.wanted(plan),
        created=before.created,
        ready=ready,
        running=phases.count("Running"),
        failed=phases.count("Failed"),
        succeeded=phases.count("Succeeded"),
    )
    return status.with_status(job, workers=counted)
