"""Benchmark of Luna's speed and memory beside other models: ``python -m luna_fairseq.benchmark``.

A *task* is a job that can be done in several ways, such as a training step. Each way, such as a model, is a
*row* of the task's table. A *case* is a setting in which all rows are compared, such as a sequence length.

To add a row, add an entry to ``attention.CAUSAL``, ``attention.FORMS``, ``models.MODELS`` or
``apollo.OPTIMIZERS``. With ``peer=True``, the output gets a column with the speed of every row divided by the
speed of this row. With ``optional=True``, the row is measured only if ``--with`` names it. To add a task,
write a subclass of :class:`~.task.Task` and add it to ``__main__.TASKS``.

``task.py`` selects the rows and compares them with their definitions. ``measure.py`` measures time, memory
and operations. ``page.py`` prints, writes and plots the results. ``gpu.py`` runs the same tasks on a GPU.
"""
