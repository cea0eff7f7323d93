"""Reasons are what the evidence shows, never a guess."""

from __future__ import annotations

import json

import pytest

from orchestra.agent.failure import Evidence, Failure, explain, explain_launcher, first


def reason(exit_code: int | None, *errors: str, **more: object) -> tuple[str, str]:
    found = explain(Evidence(exit_code, errors, errors, **more))  # type: ignore[arg-type]
    return found.reason, found.message


TRACEBACK = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    step()")


def test_an_uncaught_exception_is_named_with_its_type() -> None:
    assert reason(1, *TRACEBACK, "ValueError: x is 3") == ("Exception", "ValueError: x is 3")
    assert reason(1, *TRACEBACK, "mine.Problem") == ("Exception", "mine.Problem")


def test_the_last_of_a_chain_of_exceptions_counts() -> None:
    chain = (*TRACEBACK, "KeyError: 1", "", "During handling of the above exception, another exception occurred:", "")
    assert reason(1, *chain, *TRACEBACK, "ValueError: 2")[1] == "ValueError: 2"


def test_torchs_rank_prefix_is_no_obstacle() -> None:
    lines = [f"[rank1]: {line}" for line in (*TRACEBACK, "RuntimeError: bad shape")]
    assert reason(1, *lines) == ("Exception", "RuntimeError: bad shape")


def test_a_chosen_exit_code_outweighs_a_printed_traceback() -> None:
    assert reason(3, *TRACEBACK, "ValueError: caught and logged") == ("ExitCode", "exited with code 3")


def test_source_errors_have_no_header() -> None:
    shown = ('  File "train.py", line 1', "    def f(:", "          ^", "SyntaxError: invalid syntax")
    found = reason(1, *shown)
    assert found[0] == "SyntaxError"
    assert "line 1" in found[1]
    assert reason(1, '  File "a.py", line 2', "    x", "IndentationError: unexpected indent")[0] == "SyntaxError"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("ModuleNotFoundError: No module named 'apex'", "ImportError"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...", "CudaOutOfMemory"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "CudaOutOfMemory"),
        ("RuntimeError: CUDA error: out of memory", "CudaOutOfMemory"),
        ("RuntimeError: No CUDA GPUs are available", "NoGPU"),
        ("AssertionError: Torch not compiled with CUDA enabled", "NoGPU"),
        ("torch.distributed.DistNetworkError: The server socket ... EADDRINUSE", "PortInUse"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'", "Exception"),
        ("MemoryError", "Exception"),
    ],
)
def test_known_exceptions_have_reasons_of_their_own(line: str, wanted: str) -> None:
    assert reason(1, *TRACEBACK, line)[0] == wanted


def test_the_peak_is_in_the_message() -> None:
    assert "Tried to allocate 2.00 GiB" in reason(
        1, *TRACEBACK, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    )[1]  # fmt: skip


def test_sigkill_is_out_of_memory_only_if_the_kernel_says_so() -> None:
    assert reason(-9) == ("Killed", "ended by signal 9 (SIGKILL)")
    assert reason(-9, memory_kill=True)[0] == "OutOfMemory"
    assert reason(-11, memory_kill=True)[0] == "Killed"
    assert reason(137)[0] == "ExitCode"
    assert "SIGKILL" in reason(137)[1]
    worker = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
    assert reason(1, *TRACEBACK, worker)[0] == "Exception"
    assert reason(1, *TRACEBACK, worker, memory_kill=True)[0] == "OutOfMemory"


def test_the_nccl_watchdog_is_heard() -> None:
    line = "[rank1]:[E1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 ms"
    assert reason(-6, line, "terminate called")[0] == "NcclTimeout"


def test_what_python_cannot_find() -> None:
    line = "/usr/bin/python3: can't open file '/code/train.py': [Errno 2] No such file or directory"
    assert reason(2, line) == ("FileNotFound", "there is no file /code/train.py")
    assert reason(1, "/usr/bin/python3.11: No module named trainer")[0] == "ImportError"
    assert reason(127, "cannot start nothing: No such file", started=False)[0] == "FileNotFound"


def test_torchs_error_file_is_believed() -> None:
    stack = "\n".join((*TRACEBACK, "ValueError: from the file"))
    text = json.dumps({"message": {"message": "ValueError: from the file", "extraInfo": {"py_callstack": stack}}})
    assert reason(1, "noise", error_file=text) == ("Exception", "ValueError: from the file")
    assert reason(1, "noise", error_file="{ half a fi") == ("ExitCode", "exited with code 1")


def test_the_first_failure_is_the_earliest_that_is_not_the_loss_of_a_peer() -> None:
    lost = explain(Evidence(1, (*TRACEBACK, "RuntimeError: [..] Connection closed by peer [127.0.0.1]:3"), ()))
    assert lost.peer_lost
    victim = Failure(lost.reason, lost.message, rank=0, time=1.0, peer_lost=True)
    culprit = Failure("Killed", "ended by signal 9", rank=3, time=1.1)
    later = Failure("ExitCode", "exited with code 1", rank=2, time=2.0)
    assert first([later, victim, culprit]) == culprit
    assert first([victim]) == victim
    assert first([]) is None


def test_a_launcher_that_fails_by_itself() -> None:
    missing = Evidence(1, ["/usr/bin/python3: Error while finding module ... No module named 'torch'"], [])
    assert explain_launcher("torchrun", missing, ranks_started=False).reason == "LauncherMissing"
    assert explain_launcher("torchrun", Evidence(-9, [], []), ranks_started=True).reason == "Killed"
    other_node = explain_launcher("torchrun", Evidence(1, [], []), ranks_started=True)
    assert other_node.rank is None
    assert "no rank of this node failed" in other_node.message
