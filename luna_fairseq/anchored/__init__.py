"""Anchored attention, an extension of Luna that divides the context into segments.

Each row of the packed sequence P summarises one segment, and unpack attention can also read tokens of the
context directly. README.md in this folder explains the extension. The Luna of the paper, in ``ops`` and
``modules``, does not depend on it.
"""
