"""``python -m luna_fairseq.benchmark``: speed and memory of Luna beside named peers, as ratios measured in
one run.

- *A row*: a line in the table of its task (``attention.CAUSAL``, ``attention.FORMS``, ``models.MODELS``,
  ``apollo.OPTIMIZERS``). ``peer=True`` adds a column with the speed of every row as a multiple of this one's;
  ``optional=True`` leaves the row out unless ``--with`` asks for it.
- *A task*: a file with a subclass of :class:`~.task.Task`, and its line in ``__main__.TASKS``.

``task.py`` checks the rows and lays them out, ``measure.py`` times, weighs and counts, ``page.py`` prints,
writes and draws. ``gpu.py`` runs the same tasks on a GPU.
"""
