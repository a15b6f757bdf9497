"""Anchored P, the extension: places for the rows of P, and what is read beside them. See README.md beside
this file. The paper's Luna, in the rooms below, knows nothing of it."""
