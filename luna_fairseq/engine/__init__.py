"""All changes to fairseq's own behaviour.

Importing this package checks that fairseq is installed and makes the changes of ``table.py``. ``luna-engine``
lists them. fairseq's own training loop, trainer and options stay in use.
"""

import os
import sys

from luna_fairseq.command_errors import in_command, in_one_line
from luna_fairseq.engine.table import patch_fairseq
from luna_fairseq.requirements import require_fairseq

if in_command():
    # Without this, Hydra prints its own report of an error.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    sys.excepthook = in_one_line(sys.excepthook)
require_fairseq()
patch_fairseq()
