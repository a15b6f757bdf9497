"""Datasets, and the grammar that writes the demonstration corpus."""
