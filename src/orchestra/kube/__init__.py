"""A small controller runtime for Kubernetes that does not lose events. It knows nothing of what it controls."""
