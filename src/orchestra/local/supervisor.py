"""The supervisor of one job: a detached process that carries it through its life. No daemon: one a job.

Its death is noticed (the lock falls), its agents die with it, and what it knew is in the store.
"""

from __future__ import annotations

import fcntl
import os
import queue
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec

from orchestra.api.engine import Event
from orchestra.api.job import Failure, Phase, TorchrunJob
from orchestra.api.problem import Invalid
from orchestra.api.reloaded import Reloaded
from orchestra.local import etcd
from orchestra.local.agents import Agents
from orchestra.local.code import Codes
from orchestra.local.here import differences, free_ports, launch_spec, plan_here, wants_etcd
from orchestra.local.home import Home
from orchestra.local.machine import Machine
from orchestra.local.moving import FetchFailed, Mover
from orchestra.local.reload import Reload, answered_generation, read_request, write_answer
from orchestra.local.slots import Claim, Grant, Need, judge, need_of
from orchestra.local.store import Desired, SlotClaim, Store
from orchestra.local.submitted_code import snapshot_of
from orchestra.plan import Plan, restart, status
from orchestra.plan.outcome import Outcome, outcome_of
from orchestra.sync.errors import SyncError

_TICK = 0.1
_PROGRESS_EVERY = 1.0
_LAST_WORDS = 5.0  # how long the other nodes may take to tell why they failed too
_LOSSES_KEPT = 60
_RELOADED = "Reloaded"
_KILL_MARGIN = 5.0  # what an agent may need beyond the grace period


class Supervisor:
    """Carries one job through its life."""

    def __init__(self, home: Home, uid: str) -> None:
        self.home = home
        self.store = Store(home.database)
        row = self.store.by_uid(uid)
        if row is None:
            raise LookupError(f"no job {uid} in {home.database}")
        self.record = row.record
        self.folder = home.job(self.record.name, uid)
        self.machine = Machine.here()
        self.told_to_stop = False
        self.generation = answered_generation(self.folder)
        self.etcd: str | None = None

    # ---- the life of a job

    def run(self) -> None:
        """From here to rest: succeeded, failed, suspended or gone."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self.folder.output.mkdir(parents=True, exist_ok=True)
        try:
            while self._next_attempt():
                pass
        finally:
            self.store.release(self.record.uid)
        if self.store.desired(self.record.uid) == "delete":
            self.store.mark_deleted(self.record.uid)

    def _next_attempt(self) -> bool:
        """One attempt with all that comes before and after; False when the job has come to rest."""
        if self._rest_if_asked("it was not running"):
            return False
        budget = restart.Budget(self.record.spent, self.record.free_retries)
        try:
            lifecycle = plan_here(self.record, self.machine, None, (0, 0)).lifecycle
            left = restart.restarts_left(lifecycle, budget)
            self.etcd = etcd.usable()[0] if wants_etcd(self.record) else None
            made = plan_here(self.record, self.machine, left, free_ports(), own_etcd=self.etcd is not None)
        except Invalid as invalid:
            self._phase("Failed", "Invalid", "; ".join(str(problem) for problem in invalid.problems))
            return False
        self._job(status.sized(self.record.job, made))
        gpus = self._wait_for_slots(made)
        if gpus is None:
            return False
        checkpoint_before = self._checkpoint_step()
        outcome, asked = self._attempt(made, gpus)
        self.store.release(self.record.uid)
        if asked == _RELOADED and outcome.state != "done":
            return True
        if asked is not None or outcome.state == "done":
            self._rest(outcome, asked)
            return False
        newer = (self._checkpoint_step() or -1) > (checkpoint_before if checkpoint_before is not None else -1)
        return self._after_failure(outcome, restart.after(outcome, lifecycle, budget, new_checkpoint=newer))

    def _after_failure(self, outcome: Outcome, verdict: restart.Retry | restart.GiveUp) -> bool:
        job = self.record.job
        restarts = (status.status_of(job).restarts or 0) + outcome.restarts
        self._job(status.failed(status.with_status(job, restarts=restarts), outcome.failure))
        message = _first_line(outcome.failure.message if outcome.failure else "") or outcome.state
        if isinstance(verdict, restart.GiveUp):
            self._phase("Failed", verdict.reason, message)
            return False
        if outcome.state in ("failed", "hang"):
            self._job(status.with_status(self.record.job, restarts=restarts + 1))
        self.record = msgspec.structs.replace(
            self.record, spent=verdict.budget.spent, free_retries=verdict.budget.free_retries
        )
        self._phase("Pending", verdict.reason, f"{message}; starting again in {verdict.pause:.0f} s", warning=True)
        end = time.monotonic() + verdict.pause
        while time.monotonic() < end and self._asked() is None:
            time.sleep(_TICK)
        return True

    # ---- waiting

    def _wait_for_slots(self, made: Plan) -> tuple[int, ...] | None:
        """The GPUs to use (perhaps none of them), or None when the wait ended otherwise."""
        need = need_of(made, self.machine.cores)
        self.store.line_up(self.record.uid, SlotClaim(need.gpus, need.cores))
        begun, said = time.monotonic(), ""
        while True:
            verdict = self._take_slots()
            if isinstance(verdict, Grant):
                return verdict.gpus
            ahead = ", ".join(verdict.ahead) or "others"
            message = f"waits for slots behind {ahead}, place {verdict.place} in the line"
            if message != said:
                self._phase("Queued", "NoSlots", message)
                said = message
            if self._rest_if_asked("it was waiting for slots"):
                return None
            limit = made.lifecycle.pending_timeout_seconds
            if limit is not None and time.monotonic() - begun > limit:
                self._phase("Failed", "PendingTimeout", f"no slots within {limit} s; {message}")
                return None
            time.sleep(_TICK * 2)

    def _take_slots(self) -> Any:
        uid = self.record.uid
        with self.store.line() as rows:
            claims = []
            for row in rows:
                wanted = row.claim
                if wanted is not None:
                    held = tuple(wanted.held) if wanted.held is not None else None
                    claims.append(Claim(row.record.uid, row.record.name, Need(wanted.gpus, wanted.cores), held))
            verdict = judge(uid, claims, self.machine.gpus, self.machine.cores)
            if isinstance(verdict, Grant):
                mine = next(claim for claim in claims if claim.uid == uid)
                self.store.hold(uid, SlotClaim(mine.need.gpus, mine.need.cores, list(verdict.gpus)))
        return verdict

    # ---- running

    def _attempt(self, made: Plan, gpus: tuple[int, ...]) -> tuple[Outcome, str | None]:
        """Runs the agents to their end. The second value is who asked for the end, if anybody did."""
        attempt = (status.status_of(self.record.job).attempt or 0) + 1
        self._job(status.with_status(self.record.job, attempt=attempt))
        self._phase(
            "Provisioning", "Starting", f"attempt {attempt}: {made.node_count} x {made.procs_per_node} processes"
        )
        mover = Mover(self.record, made, self.folder, self.home, attempt)
        try:
            if mover.needed and not self._fetch(mover):
                return Outcome("stopped"), self._asked()
            code = str(mover.code) if mover.code else self._stand_up()
            mover.link(Path(code or self.record.folder))
        except (SyncError, FetchFailed) as error:
            final = not isinstance(error, FetchFailed) or error.final
            reason = ("SyncRefused" if final else "Sync") if isinstance(error, FetchFailed) else "Workspace"
            return Outcome("failed", failure=Failure(reason=reason, message=str(error))), None
        specs = [
            launch_spec(self.record, made, index, attempt, gpus, self.folder, self.home, code, mover.places())
            for index in range(made.node_count)
        ]
        if attempt == 1:
            for note in differences(self.record, made, self.home, os.environ):
                self._event("Normal", "Here", note)
        for volume in made.volumes:
            if volume.exists:
                self.home.volume(volume.claim).mkdir(parents=True, exist_ok=True)
        agents = Agents(specs, self.home, self.folder.supervisor_log)
        try:
            with etcd.running(self.etcd, made.rendezvous.store, self.folder.root / "etcd"):
                return self._run_agents(agents, mover, made)
        except etcd.EtcdFailed as error:  # somebody took its port, say
            return Outcome("lost", failure=Failure(reason="StoreLost", message=str(error))), None

    def _run_agents(self, agents: Agents, mover: Mover, made: Plan) -> tuple[Outcome, str | None]:
        agents.start()
        mover.start()
        try:
            asked = self._watch(agents, made)
        finally:
            if agents.running():
                agents.kill()
            unsent = mover.finish()
            if unsent is not None:
                where = f"they are in {self.folder.output}"
                self._event("Warning", "NotSynced", f"not all outputs are in the store: {unsent}; {where}")
        return outcome_of(agents.results()), asked

    def _fetch(self, mover: Mover) -> bool:
        """Code, data and checkpoints, before the start; False when the job is to stop instead."""
        self._phase("Syncing", "Fetching", "fetching what the job needs")
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()

        def asked() -> bool:
            line = ""
            while not lines.empty():
                line = lines.get()
            if line:
                self._job(status.in_phase(self.record.job, "Syncing", "Fetching", line, time.time()))
            return self._asked() is not None

        return mover.fetch(lines.put, asked)

    def _stand_up(self) -> str | None:
        """The tree that this attempt runs in; None: the user's folder itself."""
        request = read_request(self.folder, self.generation)
        if request is not None:  # asked for while the job waited
            self.generation = request.generation
            if request.snapshot:
                self._job(request.on(self.record.job))
            message = "the job starts on the new code"
            write_answer(self.folder, Reloaded(generation=request.generation, state="restarted", message=message))
        snapshot = snapshot_of(self.record.job)
        if snapshot is None:
            return None
        return str(Codes(self.home).stand_up(snapshot, self.folder, Path(self.record.folder)))

    def _bring_home(self) -> None:
        """What the program wrote beside its code goes where the user looks for it."""
        try:
            stayed = Codes(self.home).bring_home(self.folder, Path(self.record.folder))
            Codes(self.home).drop_old_trees(self.folder)
        except (OSError, SyncError) as error:
            self._event("Warning", "Workspace", f"not all that was written beside the code came home: {error}")
            return
        if stayed:
            names = ", ".join(stayed[:5]) + (" ..." if len(stayed) > 5 else "")
            self._event("Normal", "Workspace", f"your folder has its own file of that name, so here: {names}")

    def _watch(self, agents: Agents, made: Plan) -> str | None:
        """Until all agents have ended. Returns the reason of a stop that was asked for."""
        asked: str | None = None
        kill_at: float | None = None
        next_progress = 0.0
        while agents.running():
            now = time.monotonic()
            if asked is None:
                asked = self._asked() or self._past_deadline(made)
                if asked is not None:
                    self._event("Normal", "Stopping", f"{asked}: asking the ranks to save and stop")
                    agents.stop()
                    kill_at = now + (made.lifecycle.grace_period_seconds or 0) + _KILL_MARGIN
            if kill_at is None and self._fell(agents) and not self._take_back(agents, made):
                kill_at = now + _LAST_WORDS  # one node has fallen: the others follow or are ended
            if kill_at is not None and now > kill_at:
                agents.kill()
            if asked is None and kill_at is None and self._new_code(agents, made):
                asked = _RELOADED
                agents.stop()
                kill_at = time.monotonic() + (made.lifecycle.grace_period_seconds or 0) + _KILL_MARGIN
            if now >= next_progress:
                next_progress = now + _PROGRESS_EVERY
                self._show_progress(agents)
            time.sleep(_TICK)
        self._show_last_progress(agents)
        return asked

    def _new_code(self, agents: Agents, made: Plan) -> bool:
        """Carries out a request for new code. Returns whether all workers have to be started anew for it."""
        request = read_request(self.folder, self.generation)
        if request is None:
            return False
        self.generation = request.generation
        change = Reload(agents, request, made.lifecycle.grace_period_seconds or 0, lambda: self._asked() is None)
        answer = change.carry_out(Codes(self.home), self.folder, Path(self.record.folder))
        if answer.changed:
            self._job(request.on(self.record.job))
        if answer.state != "preloaded":
            self._event("Normal" if answer.changed else "Warning", *answer.told)
        write_answer(self.folder, answer)
        return answer.state == "restarted"

    def _fell(self, agents: Agents) -> bool:
        """Whether a node has ended otherwise than by being done: one that is done early just waits for the others."""
        results = agents.results()
        ended = [results[agent.index] for agent in agents.ended()]
        return any(result is None or result.state != "done" for result in ended)

    def _take_back(self, agents: Agents, made: Plan) -> bool:
        """An elastic job goes on without a node that was lost, and takes it back in."""
        lost = [agent for agent in agents.ended() if agents.results()[agent.index] is None]
        hosts_store = any(agent.index == 0 for agent in lost)
        if not made.elastic or not lost or hosts_store or len(agents.running()) < made.min_nodes:
            return False
        for agent in lost:
            self._event("Warning", "NodeLost", f"node {agent.index} was lost; taking it back in")
            agents.restart(agent.index)
        return True

    def _show_progress(self, agents: Agents) -> None:
        view = agents.ask_first()
        if view is None:
            return
        if view.ranks and status.status_of(self.record.job).phase != "Running":
            self._phase("Running", "Started", "its ranks are running")
        job = self.record.job
        if view.progress:
            job = status.with_progress(job, status.progress_from(view.progress))
        workers = status.status_of(job).workers
        if workers is not None:
            count = len(agents.running())
            job = status.with_status(job, workers=msgspec.structs.replace(workers, running=count, ready=count))
        if job != self.record.job:
            self._remember_loss(job)
            self._job(job)

    def _show_last_progress(self, agents: Agents) -> None:
        """A short job is over before anybody asked: its agents' last words have the numbers too."""
        told = [result.progress for result in agents.results().values() if result is not None and result.progress]
        if told:
            self._job(status.with_progress(self.record.job, status.progress_from(told[0])))

    def _remember_loss(self, job: TorchrunJob) -> None:
        progress = status.status_of(job).progress
        before = status.status_of(self.record.job).progress
        if progress and progress.loss is not None and (before is None or progress.step != before.step):
            losses = [*self.record.losses, progress.loss][-_LOSSES_KEPT:]
            self.record = msgspec.structs.replace(self.record, losses=losses)

    # ---- ends

    def _asked(self) -> str | None:
        """Who wants the job to stop, in a word."""
        wanted: dict[Desired, str | None] = {
            "run": None,
            "suspend": "Suspended",
            "cancel": "Cancelled",
            "delete": "Deleted",
        }
        return wanted[self.store.desired(self.record.uid)] or ("Interrupted" if self.told_to_stop else None)

    def _past_deadline(self, made: Plan) -> str | None:
        limit = made.lifecycle.active_deadline_seconds
        begun = status.seconds_of(status.status_of(self.record.job).start_time)
        return "DeadlineExceeded" if limit is not None and begun is not None and time.time() - begun > limit else None

    def _rest_if_asked(self, state: str) -> bool:
        asked = self._asked()
        if asked is None:
            return False
        self._rest(Outcome("stopped"), asked, state)
        return True

    def _rest(self, outcome: Outcome, asked: str | None, state: str = "") -> None:
        """The job comes to rest, by success or because somebody asked."""
        restarts = (status.status_of(self.record.job).restarts or 0) + outcome.restarts
        self._job(status.with_status(self.record.job, restarts=restarts))
        if outcome.state == "done":
            self._job(status.failed(self.record.job, None))
            self._phase("Succeeded", "Done", "all ranks are done")
            return
        saved = f"saved at step {outcome.step}" if outcome.checkpoint else state or "nothing was saved"
        if asked in ("Cancelled", "Deleted", "DeadlineExceeded"):
            self._phase("Failed", asked, f"{asked}: {saved}", warning=asked == "DeadlineExceeded")
        else:
            self._phase("Suspended", asked or "Suspended", saved)

    def give_up(self, error: str) -> None:
        """The supervisor itself failed: said, and nothing left half done."""
        self.store.release(self.record.uid)
        self._phase("Failed", "SupervisorError", f"{error}; see {self.folder.supervisor_log}")

    # ---- telling

    def _checkpoint_step(self) -> int | None:
        progress = status.status_of(self.record.job).progress
        return progress.checkpoint_step if progress else None

    def _job(self, job: TorchrunJob) -> None:
        self.record = msgspec.structs.replace(self.record, job=job)
        self.store.save(self.record)

    def _phase(self, phase: Phase, reason: str, message: str, *, warning: bool = False) -> None:
        if phase in status.RESTING:
            self._bring_home()  # before anybody hears that the job is over
        self._job(status.in_phase(self.record.job, phase, reason, message, time.time()))
        bad = warning or (phase == "Failed" and reason not in ("Cancelled", "Deleted"))
        self._event("Warning" if bad else "Normal", reason, f"{phase}: {message}")

    def _event(self, kind: str, reason: str, message: str) -> None:
        self.store.tell(
            self.record.uid, Event(time.time(), "Warning" if kind == "Warning" else "Normal", reason, message)
        )

    def _on_signal(self, _number: int, _frame: object) -> None:
        self.told_to_stop = True


def _first_line(text: str | None) -> str:
    return next((line for line in (text or "").splitlines() if line.strip()), "")


def main() -> int:
    """`python -m orchestra.local.supervisor NAME UID`: returns when the supervisor, now on its own, has its lock."""
    home, (name, uid) = Home.of_user(), sys.argv[1:3]
    folder = home.job(name, uid)
    folder.root.mkdir(parents=True, exist_ok=True)
    lock = folder.lock.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{name} has a supervisor already", file=sys.stderr)
        return 1
    if os.fork():
        os._exit(0)  # the lock lives on in the child
    supervisor = Supervisor(home, uid)
    try:
        supervisor.run()
    except Exception:  # noqa: BLE001 -- whatever went wrong, the user must be able to read it
        text = traceback.format_exc()
        print(text, file=sys.stderr)
        supervisor.give_up(text.strip().splitlines()[-1])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
