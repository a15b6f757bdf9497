"""The tasks on which masked language models are fine-tuned (Luna, section 4.3), read from their published files."""

from typing import Dict

from luna_fairseq.data.finetuning.glue import GLUE
from luna_fairseq.data.finetuning.multiple_choice import MULTIPLE_CHOICE
from luna_fairseq.data.finetuning.task import Example, FineTuningTask

TASKS: Dict[str, FineTuningTask] = {task.name: task for task in (*GLUE, *MULTIPLE_CHOICE)}

__all__ = ["TASKS", "Example", "FineTuningTask"]
