"""``python -m luna_fairseq.benchmark.gpu``: one command that tries and times the GPU kernels, within minutes.

Every piece of work is a job of a section, and every section runs in processes of its own: what fails, hangs
or breaks the GPU's context ends one job, is reported, and the rest goes on. Rows are written to ``gpu.json``
and ``gpu.md`` as they come. On a CPU the same runs at small sizes, the kernels in Triton's interpreter.

``parity.py``, ``resources.py``, ``timing.py`` and ``machine.py`` do the work, ``sections.py`` says what and
in which order, ``supervise.py`` runs it, ``page.py`` writes it down.
"""
