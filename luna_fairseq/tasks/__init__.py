"""Tasks that fairseq does not have."""

from luna_fairseq.tasks.long_range_arena import LRAImageTask, LRATextTask

__all__ = ["LRAImageTask", "LRATextTask"]
