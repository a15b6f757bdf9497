"""Anchored attention, an extension of Luna that divides the context into segments.

Words used throughout this package: a *segment* is a run of consecutive context tokens, summarized by one row
of the packed sequence P. A *place* is a position in the text, measured in tokens or in segments. In a
*look-up*, a query also attends to the tokens of the segments that it has *chosen*, and in a *window* to the
tokens of its own and the neighbouring segments. A *pair* consists of a query and a segment whose tokens the
query attends to.

README.md in this folder explains the extension. The original Luna, in ``ops`` and ``modules``, does not
depend on it.
"""
