"""Checks of options and checkpoints, which run before any work is done and do not modify fairseq."""
