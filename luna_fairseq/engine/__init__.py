"""Every change to fairseq's own behaviour, and what knows which fairseq, torch and numpy are underneath.

Importing this makes the changes of ``table.py``; ``luna-engine`` lists them. fairseq's own loop, trainer and
options stay in charge.
"""

import os
import sys

from luna_fairseq.engine.table import mend_fairseq
from luna_fairseq.errors import in_command, in_one_line
from luna_fairseq.requirements import require_fairseq

if in_command():
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # otherwise Hydra prints it
    sys.excepthook = in_one_line(sys.excepthook)
require_fairseq()
mend_fairseq()
