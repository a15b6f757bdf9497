"""Checks of options and checkpoints that run before any work is done. They do not modify fairseq."""
