"""What the program's exit status means. Scripts rely on these."""

OK = 0
ERROR = 1
USAGE = 2
JOB_FAILED = 100
NOT_FINISHED = 101
NOT_FOUND = 102
CANCELLED = 103
