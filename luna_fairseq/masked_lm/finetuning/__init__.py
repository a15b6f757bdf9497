"""Fine-tuning tasks of section 4.3 of the Luna paper: GLUE, RACE and CommonsenseQA.

Each task reads its examples from the files published by its authors.
"""

from typing import Dict

from luna_fairseq.masked_lm.finetuning.glue import GLUE
from luna_fairseq.masked_lm.finetuning.multiple_choice import MULTIPLE_CHOICE
from luna_fairseq.masked_lm.finetuning.task import Example, FineTuningTask

TASKS: Dict[str, FineTuningTask] = {task.name: task for task in (*GLUE, *MULTIPLE_CHOICE)}

__all__ = ["TASKS", "Example", "FineTuningTask"]
