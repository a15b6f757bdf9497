"""``python -m luna_fairseq.benchmark``: speed and memory of Luna beside named peers, as ratios measured in
one run.

Who adds something opens one file:

- *a row*, such as a model of another attention or one more form of an attention: the tables in ``peers.py``.
  The key is the row's name; ``{l}`` in it makes a row for every ``--projection-length``. ``peer=True`` adds a
  column with the speed of every row as a multiple of this one's; ``optional=True`` leaves the row out unless
  ``--with NAME`` asks for it.
- *a training task* of whole models: ``training_tasks.py``, a subclass of :class:`~.training.Training` and its
  line in ``TASKS``; in the rows of ``peers.py``, the architecture that does it.
- *a sub-command*: a file with a subclass of :class:`~.task.Task`, which says how to build, do and count a
  job, and its line in ``__main__.COMMANDS``.

``task.py`` puts a comparison together, ``measure.py`` times and weighs it, ``report.py`` prints and writes
each case as soon as it is measured, ``plot.py`` draws.
"""
