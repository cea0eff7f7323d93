"""`restart`: the ranks anew in the running pods, with whatever code lies there now."""

from __future__ import annotations

import argparse
import sys

from orchestra.cli import exit_codes

EPILOG = """\
All ranks save at one agreed step, end, and start again in the same pods: no pod is recreated, nothing is scheduled. A
script without our library starts from its own last checkpoint. If one worker does not answer, none is stopped.
With --recreate the pods go too: all save and end, and when the last is gone all start anew.

examples:
  {program} cp my-job train.py :/app/train.py && {program} restart my-job
"""


_LAST_SECONDS = 120.0
"""For the pods' last uploads and for their controller, after the time to save."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_job_argument

    parser.add_argument("--grace", type=float, default=120.0, metavar="SECONDS", help="time to save (default: 120)")
    parser.add_argument("--recreate", action="store_true", help="end all pods, which save first, and start new ones")
    add_job_argument(parser)
    parser.set_defaults(rank=None, node=None)


def run(args: argparse.Namespace) -> int:
    """0 when all ranks started again."""
    from orchestra.cli.kubectl import kubectl_words
    from orchestra.cli.pods import choose_pods
    from orchestra.cli.restarting import Worker, restart

    if args.recreate:
        return _recreate(args)
    engine, pods = choose_pods(args)
    words = [*kubectl_words(args, engine.namespace), "exec", "-i"]
    workers = [Worker(pod.metadata.name, [*words, pod.metadata.name, "-c", pod.trainer, "--"]) for pod in pods]
    restart(workers, args.grace, lambda text: print(text, file=sys.stderr))
    print(f"started again in {len(workers)} pods; {args.program} logs -f shows it", file=sys.stderr)
    return exit_codes.OK


def _recreate(args: argparse.Namespace) -> int:
    """Suspended and, when nothing runs any more, resumed: no new pod meets an old one."""
    import time

    from orchestra.api.engine import EngineError
    from orchestra.cli.engines import choose
    from orchestra.cluster.engine import KubernetesEngine
    from orchestra.plan.status import status_of

    engine, name = choose(args)
    if not isinstance(engine, KubernetesEngine):
        raise EngineError(f"{name} runs on this machine; suspend {name} and resume {name} do the same")
    engine.suspend(name)
    print("all workers save and end", file=sys.stderr)
    until = time.monotonic() + args.grace + _LAST_SECONDS
    while status_of(engine.get(name)).phase != "Suspended" or not all(pod.ended for pod in engine.workers(name)):
        if time.monotonic() > until:
            mend = f"{args.program} why {name} tells more; {args.program} resume {name} starts it again"
            raise EngineError(f"{name} has not ended within {args.grace + _LAST_SECONDS:g} s; {mend}")
        time.sleep(0.5)
    engine.resume(name, {})
    print(f"all workers start anew; {args.program} logs -f {name} shows it", file=sys.stderr)
    return exit_codes.OK
