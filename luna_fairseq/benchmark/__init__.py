"""Benchmarks of Luna's speed and memory against other models: ``python -m luna_fairseq.benchmark``.

A *task* is a computation with several implementations, such as a training step. Each implementation is a
*variant* of the task, such as Luna or a Transformer, and has a row in the printed table. A *case* is a
setting in which all variants are measured, such as a sequence length.

To add a variant, add an entry to ``attention.CAUSAL``, ``attention.BIDIRECTIONAL``, ``models.MODELS`` or
``apollo.OPTIMIZERS``. If ``peer=True``, the table gets a column with the speedup of each variant over the new
variant. If ``optional=True``, the variant is measured only if ``--with`` selects it. To add a task, write a
subclass of :class:`~.task.Task` and add it to ``__main__.TASKS``.

- ``task.py`` selects the variants and compares their results with a reference.
- ``measure.py`` measures time, memory and operations.
- ``page.py`` prints, saves and plots the results.
- ``gpu.py`` runs the same tasks on a GPU.
"""
