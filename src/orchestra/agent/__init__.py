"""The agent: process 1 of every worker, and the shim that stands between the launcher and each rank.

Everything here but `pack` is standard library only, runs on Python 3.8, and is shipped as one file, `agent.pyz`, into
images that have nothing of ours. So: relative imports only, and nothing of Orchestra outside this folder.
The contract with engines and ranks is docs/worker-contract.md.
"""
