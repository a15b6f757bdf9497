"""Every change to fairseq's own behaviour, and what knows which fairseq, torch and numpy are underneath.

Importing this makes the changes of ``table.py``; ``luna-engine`` lists them. fairseq's own loop, trainer and
options stay in charge.
"""

from luna_fairseq.engine.table import mend_fairseq
from luna_fairseq.engine.underneath import require_fairseq
from luna_fairseq.errors import one_line_in_commands

with one_line_in_commands():
    require_fairseq()
    mend_fairseq()
