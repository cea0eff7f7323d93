"""Moving code and data: snapshots of a folder, a content-addressed store, outputs that are complete or not there.

This room knows nobody else's. Importing it is cheap: the compiled libraries load where they are first used, and
`obstore` must never be used in a process that forks afterwards, nor in a trainer.
"""
