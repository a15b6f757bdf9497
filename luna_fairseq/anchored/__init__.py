"""Anchored attention, an extension of Luna that divides the context into segments.

Each row of the packed sequence P summarizes one segment, and unpack attention can also attend to context
tokens directly. README.md in this folder explains the extension. The original Luna, in ``ops`` and
``modules``, does not depend on it.
"""
