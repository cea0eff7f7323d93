"""One file a verb: what it takes, what it does, what it prints."""
