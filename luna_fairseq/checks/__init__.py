"""Checks of options and checkpoints that run before any work is done. They change nothing in fairseq."""
