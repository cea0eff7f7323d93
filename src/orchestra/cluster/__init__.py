"""Jobs on a Kubernetes cluster that runs our operator: the engine behind `orchestra` and `kubectl torchrun`.

It is a client like any other: it reads and writes TorchrunJobs with the user's own rights, and never an operator's
objects. It knows `kube`, `plan` and `api`, and neither the operator nor the embedded engine.
"""
