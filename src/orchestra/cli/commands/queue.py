"""`queue`: the queues that jobs can name."""

from __future__ import annotations

import argparse

from orchestra.cli import exit_codes

EPILOG = """\
`local` describes this machine and is always there; others came with job files.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_engine_arguments

    parser.add_argument("queue", nargs="?", metavar="QUEUE", help="one of them")
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml", "name"), default="table")
    parser.add_argument("--no-headers", action="store_true", help="rows only")
    add_engine_arguments(parser, lists=True)


def run(args: argparse.Namespace) -> int:
    """Prints one row a queue."""
    from orchestra.api.engine import NotFound
    from orchestra.api.template import NodeResources
    from orchestra.cli.engines import choose_engine
    from orchestra.cli.structured import print_objects
    from orchestra.cli.terminal import table

    engine = choose_engine(args)
    queues = [queue for queue in engine.queues() if args.queue in (None, queue.metadata.name)]
    if not queues:
        raise NotFound(f"there is no queue {args.queue} here")
    if args.output != "table":
        print_objects(queues[0] if args.queue else queues, args.output)
        return exit_codes.OK
    jobs = engine.jobs()
    rows = []
    for queue in queues:
        node = queue.spec.node_resources or NodeResources()
        mine = [job for job in jobs if job.spec.job_queue == queue.metadata.name and job.status]
        running = sum(job.status.phase == "Running" for job in mine if job.status)
        waiting = sum(job.status.phase in ("Queued", "Pending") for job in mine if job.status)
        rows.append(
            [
                queue.metadata.name,
                str(node.gpus or 0),
                str(node.cpus or ""),
                str(node.memory or ""),
                str(running),
                str(waiting),
            ]
        )
    print(table(rows, ["NAME", "GPUS/NODE", "CPUS", "MEMORY", "RUNNING", "WAITING"], show_headers=not args.no_headers))
    return exit_codes.OK
