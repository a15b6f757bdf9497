"""Anchored P, an extension of the paper's Luna.

Every row of the packed sequence P gets a place in the context, and unpack attention may also read tokens.
README.md in this folder explains the extension. The paper's Luna, in ``ops`` and ``modules``, does not depend
on it.
"""
