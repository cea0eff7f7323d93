"""The plain form: a shell script as process 1, for images that have nothing of ours.

It does what a Kubernetes pod needs and the older scripts missed: a stop is passed on and waited for, the last upload
happens however the script ends, the background upload is ended by its process id, and the script survives what it
starts. POSIX sh, no bash.
"""

from __future__ import annotations

import shlex

from orchestra.plan.model import Plan
from orchestra.render.launch import Launching
from orchestra.render.site import STATE, Site
from orchestra.render.steps import can_aws, folders, preparation
from orchestra.render.words import Word, shell

MARK = "# orchestra plain script 1"
TOKEN_SPELLINGS = ("HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HF_API_TOKEN")
"""Older names of HF_TOKEN."""

_LIFE = f"""\
state={STATE}
child= syncer= reaper= stopping= nap=

# A shell handles a signal only between commands: so everything that takes long runs in the background.
run() {{
  "$@" &
  child=$!
  [ -z "$stopping" ] || ask_child
  code=0
  wait "$child" || code=$?
  # `wait` returns early when a signal comes: ask again until the child is really gone.
  while kill -0 "$child" 2>/dev/null; do
    code=0
    wait "$child" || code=$?
  done
  child=
  return "$code"
}}

# A child that has only just been forked may lose a signal; and a trainer must not get it twice.
ask_child() {{
  sleep 0.1 2>/dev/null || sleep 1
  kill -TERM "$child" 2>/dev/null || true
}}

# Sleeps so that it can be ended at once.
nap() {{
  trap 'kill "$nap" 2>/dev/null; exit 0' TERM
  sleep "$1" &
  nap=$!
  wait "$nap"
}}

stop() {{
  stopping=1
  [ -n "$child" ] || return 0
  ask_child
  # The kubelet kills the whole pod at the end of the grace period; the last upload needs some of it.
  (nap "$GRACE_SECONDS"; kill -KILL "$child") >/dev/null 2>&1 &
  reaper=$!
}}

# However the script ends: end the helpers by their process ids, upload once more, leave a last word.
finish() {{
  code=$?
  trap - EXIT
  trap '' TERM INT
  for helper in $reaper $syncer; do
    # Again and again until it is gone: a process that has only just been forked may lose a signal.
    while kill -TERM "$helper" 2>/dev/null; do
      sleep 0.1 2>/dev/null || sleep 1
    done
  done
  [ -z "$stopping" ] || [ "$code" -eq 0 ] || code=143
  if ! upload; then
    echo "the last upload failed" >&2
    [ "$code" -ne 0 ] || code=1
  fi
  record "$code"
  exit "$code"
}}

record() {{
  echo "node $NODE_RANK ended with $1 after ${{restarts:-0}} restarts" > "$state/result"
  cat "$state/result" > /dev/termination-log 2>/dev/null || true
}}

trap stop TERM INT
trap finish EXIT
mkdir -p "$state"
# Healthy from the start: a liveness file that is written only after training would get the pod killed long before.
touch "$state/healthy"
"""

_LOOP = """\
# Survives its child: what fails or is killed is started again in this same pod, as often as the job allows.
restarts=$(cat "$state/restarts" 2>/dev/null || echo 0)
touch "$state/ready"
while :; do
  code=0
  run launch || code=$?
  [ "$code" -ne 0 ] && [ -z "$stopping" ] && [ "$restarts" -lt "$MAX_RESTARTS" ] || break
  restarts=$((restarts + 1))
  echo "$restarts" > "$state/restarts"
  echo "node $NODE_RANK: ended with $code; starting again ($restarts of $MAX_RESTARTS)" >&2
  run sleep "$BACKOFF_SECONDS"
done
"""

_IDLE = """\
# A StatefulSet starts a finished pod again, and it would train anew. So it says what happened and idles.
if [ -z "$stopping" ]; then
  upload || code=1
  record "$code"
  echo "$code" > "$state/finished"
  echo "node $NODE_RANK is finished with $code; idling until the pod is deleted"
  idle
  code=$(cat "$state/finished")
fi
"""

_RESUME_IDLE = """\
idle() {
  while [ -z "$stopping" ]; do
    run sleep 3600 || true
  done
}
# The container was restarted after the end: nothing is left to do.
if [ -e "$state/finished" ]; then
  upload() { :; }
  idle
  exit "$(cat "$state/finished")"
fi
"""


def plain_script(plan: Plan, launch: Launching, site: Site) -> str:
    """The whole script of one job, the same for all its nodes."""
    parts = [
        f"#!/bin/sh\n{MARK}: job {plan.job}, queue {plan.queue}. Change the job file and render again.\nset -eu\n",
        _identity(launch, site),
        _settings(plan),
        _LIFE,
        _uploads(plan),
        *([_RESUME_IDLE] if site.idles else []),
        _prepare(plan),
        _files(plan),
        _launch(launch),
        _LOOP,
        *([_IDLE] if site.idles else []),
        'exit "$code"\n',
    ]
    return "\n".join(part for part in parts if part)


def _identity(launch: Launching, site: Site) -> str:
    source = f"${{{site.rank_variable}:-{site.rank_fallback}}}"
    tokens = "".join(f"${{{name}:-" for name in ("HF_TOKEN", *TOKEN_SPELLINGS)) + "}" * (len(TOKEN_SPELLINGS) + 1)
    lines = [
        "# --- who am I",
        "# The node's number, as the controller gives it; on old clusters from the pod's name.",
        f'NODE_RANK="{source}"',
        "# Node 0 hosts the rendezvous store. torchrun would guess this from DNS, before the records exist.",
        "IS_HOST=0",
        '[ "$NODE_RANK" != 0 ] || IS_HOST=1',
        "export NODE_RANK",
        *(f"export {name}={shell(word)}" for name, word in launch.late_env.items()),
        "# Libraries look for HF_TOKEN; older names of it are taken too.",
        f'HF_TOKEN="{tokens}"',
        'if [ -n "$HF_TOKEN" ]; then export HF_TOKEN; else unset HF_TOKEN; fi',
    ]
    return "\n".join(lines) + "\n"


def _settings(plan: Plan) -> str:
    restarts = 0 if plan.lifecycle.restart_policy == "Never" else plan.lifecycle.max_restarts or 0
    return (
        "# --- settings\n"
        f"MAX_RESTARTS={restarts}\n"
        f'BACKOFF_SECONDS="${{BACKOFF_SECONDS:-5}}"\n'
        f'GRACE_SECONDS="${{GRACE_SECONDS:-{plan.lifecycle.grace_period_seconds or 0}}}"\n'
    )


def _uploads(plan: Plan) -> str:
    output = folders(plan).output
    if plan.sync is None or output is None or not can_aws(plan.sync.output):
        return "upload() { :; }  # nothing to upload: outputs stay on the volume\n"
    shared = any(volume.purpose == "checkpoints" for volume in plan.volumes)
    only_one = '  [ "$NODE_RANK" = 0 ] || return 0  # one claim for all nodes: one of them uploads\n' if shared else ""
    return f"""\
# --- uploads
S3_OUTPUT_DIR={shlex.quote(str(plan.sync.output))}
LOCAL_OUTPUT_DIR={shlex.quote(output)}
SYNC_SECONDS="${{SYNC_SECONDS:-{plan.sync.interval}}}"
upload() {{
{only_one}  [ -d "$LOCAL_OUTPUT_DIR" ] || return 0
  # Files that are still being written stay at home: half a checkpoint looks like a whole one.
  aws s3 sync --no-progress --exclude '*.tmp' --exclude '*.part' --exclude '*tmp-*' "$LOCAL_OUTPUT_DIR" "$S3_OUTPUT_DIR"
}}
keep_uploading() {{
  while :; do
    nap "$SYNC_SECONDS"
    upload || echo "the upload failed; the next one is in $SYNC_SECONDS s" >&2
  done
}}
"""


def _prepare(plan: Plan) -> str:
    lines = preparation(plan, "run ")
    if plan.sync is not None and can_aws(plan.sync.output):
        lines += ["# --- upload while training", "keep_uploading &", "syncer=$!"]
    return "\n".join(lines) + "\n" if lines else ""


def _files(plan: Plan) -> str:
    return "".join(
        f"cat > {shlex.quote(path)} <<'END_OF_FILE'\n{text}END_OF_FILE\n" for path, text in plan.launch.files.items()
    )


def _launch(launch: Launching) -> str:
    """The launch line, an option a line, as people write it."""
    head, *options = launch.argv[: launch.options] or launch.argv[:1]
    program = launch.argv[launch.options :] if launch.options else launch.argv[1:]
    lines = [f"  exec {shell(head)}", *(f"    {shell(word)}" for word in options)]
    if program:
        lines.append("    " + " ".join(shell(word) for word in program))
    title = "# --- launch" if launch.options else "# --- launch, as it is"
    return f"{title}\nlaunch() {{\n" + " \\\n".join(lines) + "\n}\n"


def shell_line(words: list[Word]) -> str:
    """A launch line on one line."""
    return " ".join(shell(word) for word in words)
