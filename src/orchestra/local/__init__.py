"""The embedded engine: the whole lifecycle of a job on this machine, without a cluster and without a daemon."""
