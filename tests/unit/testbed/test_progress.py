"""One line tells what takes so long, on a terminal and in a log."""

import io

from testbed.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_line_is_updated_in_place() -> None:
    terminal = Terminal()
    progress = Progress(terminal)
    progress.update("building etcd (1 of 2)")
    progress.update("building etcd (1 of 2)")
    progress.done("building etcd (1 of 2): done")
    assert terminal.getvalue() == (
        "\r\x1b[2Kbuilding etcd (1 of 2), 0 s" * 2 + "\r\x1b[2Kbuilding etcd (1 of 2): done\n"
    )


def test_in_a_log_a_line_comes_once_and_then_every_so_often() -> None:
    log = io.StringIO()
    progress = Progress(log, plain_every=3600)
    progress.update("building etcd")
    progress.update("building etcd")
    progress.update("building kubectl")
    assert log.getvalue() == "building etcd\nbuilding kubectl\n"
    impatient = Progress(log, plain_every=0)
    impatient.update("waiting")
    impatient.update("waiting")
    assert log.getvalue().endswith("waiting\nwaiting, 0 s so far\n")
