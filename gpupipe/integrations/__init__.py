"""Checkpoints of frameworks that start, stop and move the processes of a training.

Where a process is among the others, :class:`gpupipe.World` knows for all of them.
"""
