"""Text into tokens: pairs of sentences, BPE, merges, Moses, encodings."""
