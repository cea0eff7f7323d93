"""Before the start: code, data and the newest checkpoint brought here, with progress. Doing it again is cheap."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from orchestra.sync.blobs import Blobs
from orchestra.sync.company import Company
from orchestra.sync.errors import Damaged, Missing, SyncError
from orchestra.sync.hashing import hash_of
from orchestra.sync.inplace import INSIDE, flip, stage, standing, stood
from orchestra.sync.moving import Git, Orders, Served, Told, mib, plain_only, say, without_query
from orchestra.sync.outputs import Outputs
from orchestra.sync.remote import Remote, shown
from orchestra.sync.transfer import Moving, down
from orchestra.sync.workspace import deliver

CHECKPOINTS = "checkpoints"
EARLIER = "earlier.log"
"""In the state folder: what the log in the store said before this worker; it is kept in front of its own."""
OUT = "out"
RESUMED = "resumed"
"""In the state folder: the name of the checkpoint that this attempt went on from."""


def fetch(orders: Orders) -> None:
    """Everything that the orders name. Raises `SyncError` with what is missing and where."""
    mine = not orders.shared_code  # else somebody has brought it for all
    if orders.git and orders.code_folder and mine:
        _clone(orders.git, Path(orders.code_folder))  # before the store is used: this forks
    with _alone_on_output(orders):
        _fetch(orders, mine)


def _fetch(orders: Orders, mine: bool) -> None:
    if orders.workspace and orders.code_folder and mine:
        _deliver(orders.workspace, Path(orders.code_folder))
    for what, url, folder in (
        ("code", orders.code if mine else None, orders.code_folder),
        ("data", orders.data, orders.data_folder),
    ):
        if url and folder:
            with _alone(Path(folder)):
                _bring(what, url, Path(folder))
    if orders.code_folder and os.access(orders.code_folder, os.W_OK):
        _link(Path(orders.code_folder), orders)
    if orders.output and orders.output_folder:
        _resume(orders, without_query(orders.output), Path(orders.output_folder))


@contextmanager
def _alone_on_output(orders: Orders) -> Iterator[None]:
    """The job is seen on its output from here on; `send` goes on with that. Another one that lives there: `InUse`."""
    if not (orders.output and orders.output_folder and orders.uid and orders.node == 0):
        yield
        return
    company = Company(Remote(without_query(orders.output)), orders)
    company.enter()
    company.stay()
    try:
        yield
    except BaseException:  # a stop too
        company.leave()
        raise
    company.hand_over()


def _link(folder: Path, orders: Orders) -> None:
    """`data` and `out` beside the code, as in the scripts that people know, unless the code has its own."""
    for name, url, place in (("data", orders.data, orders.data_folder), ("out", orders.output, orders.output_folder)):
        if url and place and not os.path.lexists(folder / name):
            with contextlib.suppress(FileExistsError):  # another worker, where they share the folder
                (folder / name).symlink_to(place)


def _bring(what: str, url: str, folder: Path) -> None:
    if url.startswith("hf://"):
        from orchestra.sync.hub import bring

        bring(what, url, folder)
        return
    remote, told = Remote(without_query(url), create=False), Told(what)

    def progress(moving: Moving) -> None:
        told(moving.files_done, moving.files, moving.bytes_done, moving.bytes)

    moved = down(remote, "", folder, progress=progress)
    unchanged = f", {moved.unchanged:,} were here already" if moved.unchanged else ""
    say(f"{what}: {moved.files:,} files, {mib(moved.bytes)} from {remote.url} in {told.seconds:.1f} s{unchanged}")


def _deliver(wanted: Served, folder: Path) -> None:
    """A snapshot of the workspace store, as the folder itself: it is a volume of this pod's own."""
    from orchestra.sync.client import served_store

    told, inside = Told("code"), folder / INSIDE
    now = standing(folder)
    if now is not None and now.id == wanted.snapshot:
        say(f"code: snapshot {wanted.snapshot[:12]} stands in {folder} already")
        return
    store = served_store(wanted.url, Path(wanted.token_file))
    if now is not None:  # a claim that outlived a worker, and new code came meanwhile
        staged = stage(store, wanted.snapshot, folder)
        flip(folder, wanted.snapshot)
        say(f"code: snapshot {wanted.snapshot[:12]}, {len(staged.paths):,} changes, in {told.seconds:.1f} s")
        return
    applied = deliver(store, wanted.snapshot, Blobs(inside / "blobs", link=True), inside)
    brought = store.manifest(wanted.snapshot)
    manifest, files = brought.encode(), f"{brought.files:,} files, {mib(brought.bytes)}"
    for entry in sorted(applied.tree.iterdir()):
        there = folder / entry.name
        if there.is_dir() and not there.is_symlink():
            shutil.rmtree(there)  # of a container that was killed before
        entry.replace(there)
    shutil.rmtree(inside, ignore_errors=True)
    stood(folder, wanted.snapshot, manifest)
    say(f"code: snapshot {wanted.snapshot[:12]}, {files}, from {wanted.url} in {told.seconds:.1f} s")


def _clone(git: Git, folder: Path) -> None:
    """One commit of a repository; nobody is asked for a password. A Secret's are in the environment, never in words."""
    folder.mkdir(parents=True, exist_ok=True)
    env = os.environ | {"GIT_TERMINAL_PROMPT": "0"} | git_credentials(os.environ)
    for words in (["init", "-q"], ["fetch", "-q", "--depth", "1", "--", git.url, git.ref or "HEAD"],
                  ["checkout", "-q", "--force", "FETCH_HEAD"], ["rev-parse", "HEAD"]):  # fmt: skip
        try:
            line = ["git", "-C", str(folder), *words]
            done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
        except OSError as error:
            raise SyncError(f"git is needed for {shown(git.url)} and cannot be started: {error.strerror}") from error
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["it failed"])[-1].replace(git.url, shown(git.url))
            raise Missing(f"{git.ref or 'HEAD'} of {shown(git.url)} could not be fetched: {reason}")
    say(f"code: commit {done.stdout.strip()[:10]} of {shown(git.url)}")


def git_credentials(env: Mapping[str, str]) -> dict[str, str]:
    """How git is told the user and password (or token) of a Secret, by the keys that such Secrets have."""
    password = next((env[name] for name in ("GIT_PASSWORD", "GIT_TOKEN", "password", "token") if env.get(name)), "")
    if not password:
        return {}
    user = env.get("GIT_USERNAME") or env.get("username") or "git"
    helper = '!f() { echo "username=$ORCHESTRA_GIT_USER"; echo "password=$ORCHESTRA_GIT_PASSWORD"; }; f'
    return {
        "ORCHESTRA_GIT_USER": user, "ORCHESTRA_GIT_PASSWORD": password,
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "credential.helper", "GIT_CONFIG_VALUE_0": "",  # nobody else's
        "GIT_CONFIG_KEY_1": "credential.helper", "GIT_CONFIG_VALUE_1": helper,
    }  # fmt: skip


def _resume(orders: Orders, url: str, folder: Path) -> None:
    """The plain tree first, then the newest checkpoint of ours that is whole.

    Once: afterwards the folder here is ahead of the store, and must not be taken back.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remote, state = Remote(url), Path(orders.state)
    state.mkdir(parents=True, exist_ok=True)
    if not (state / EARLIER).exists():
        (state / EARLIER).write_bytes(_log_there(remote, log_name(orders.node)))
    if orders.shared_output and orders.node:
        return  # the first node brings it, and nobody trains before all are here
    # A claim outlives this worker: what was fetched into it is noted there, under a name that is never sent.
    fetched = (
        folder / f".tmp-fetched-{hash_of(url.encode())[:16]}" if orders.shared_output else state / "fetched-output"
    )
    if fetched.exists():
        names = [] if plain_only(orders.output or "") else Outputs(Remote(f"{url.rstrip('/')}/{CHECKPOINTS}")).names()
        if names:
            (state / RESUMED).write_text(str(names[0]))
        say(f"output: what is here goes on; {remote.url} follows it")
        return
    _bring_back(orders, remote, url, folder, state / RESUMED)
    fetched.touch()


def log_name(node: int) -> str:
    """Where a node's log lies in the store."""
    return f"log-{node}.txt" if node else "log.txt"


def _log_there(remote: Remote, name: str) -> bytes:
    try:
        return remote.get(name)
    except Missing:
        return b""


def _bring_back(orders: Orders, remote: Remote, url: str, folder: Path, mark: Path) -> None:
    try:
        moved = down(remote, OUT, folder)
        if moved.files:
            say(f"output: {moved.files:,} files of earlier runs, {mib(moved.bytes)} from {remote.url}/{OUT}")
    except Missing:
        pass  # nothing yet
    if plain_only(orders.output or ""):
        return
    mark.unlink(missing_ok=True)
    told = Told("checkpoint")
    try:
        resumed = Outputs(Remote(f"{url.rstrip('/')}/{CHECKPOINTS}")).resume(folder)
    except Damaged as error:
        say(f"warning: {error}")  # the job decides whether to begin anew; nothing half is here
        return
    if resumed is None:
        say(f"no checkpoint in {remote.url} yet: the training begins anew")
        return
    for name, reason in resumed.passed_over:
        say(f"warning: checkpoint {name} was passed over: {reason}")
    mark.write_text(str(resumed.name))
    size = sum(file.size for file in resumed.files)
    say(f"checkpoint {resumed.name} (step {resumed.name.step}): {mib(size)} in {told.seconds:.1f} s")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Once a node: whoever comes second waits, and finds everything here."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder.with_name(f".{folder.name}.lock")
    own_disk = folder.is_mount() or not os.access(
        folder.parent, os.W_OK
    )  # a pod's volume, below a root that is not ours
    handle = os.open(folder / ".orchestra.lock" if own_disk else beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
