"""``python -m luna_fairseq.benchmark``: speed and memory of Luna beside named peers, as ratios measured in one run.

``measure.py`` times and weighs, ``report.py`` prints and writes, every sub-command is one module more.
"""
