"""Whose turn it is: the queue, fair shares and quotas, and what wakes those that wait."""
