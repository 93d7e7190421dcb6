"""Checkpoints of other code, read into ours: nothing in them is executed."""
