"""Queues: what they are checked for, what they count, and the line of jobs where no scheduler keeps their limits."""
