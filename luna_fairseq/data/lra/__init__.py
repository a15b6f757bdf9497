"""Data of Long Range Arena: generated, converted from what is published, written, and read."""
