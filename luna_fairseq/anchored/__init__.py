"""Anchored P, an extension of Luna that gives every row of the packed sequence P a place in the context.

A row favours the tokens near its place, and unpack attention can also read tokens of the context directly.
README.md in this folder explains the extension. The paper's Luna, in ``ops`` and ``modules``, does not depend
on it.
"""
