"""Causal language models of text that does not end: a task whose state is carried from segment to segment."""
