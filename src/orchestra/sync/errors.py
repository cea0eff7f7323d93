"""What can go wrong on the way, in words a user can act on. None of them ever holds a credential."""

from __future__ import annotations


class SyncError(Exception):
    """Something was not moved. The text says what, where, and what to do next."""


class Changed(SyncError):
    """A file changed while it was read: what was read is of no moment that ever was."""


class Damaged(SyncError):
    """Content does not have the hash or the size that its name promises."""


class Missing(SyncError):
    """Nothing has that name there."""


class Taken(SyncError):
    """A create-only name is there already, with other content."""


class Busy(SyncError):
    """Somebody else is doing that just now."""


class NoAccess(SyncError):
    """The credentials are missing, wrong, or not allowed to do this."""


class Unreachable(SyncError):
    """The store did not answer, or not in a way that trying again would mend."""


class NoRoom(SyncError):
    """The disk (or the quota) is full. What was complete before still is."""
