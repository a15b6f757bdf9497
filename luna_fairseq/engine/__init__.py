"""Patches for fairseq, applied when this package is imported.

``table.py`` collects the patches, and the command ``luna-engine`` lists them. The rest of fairseq is
used unchanged.
"""

import os
import sys

from luna_fairseq.command_errors import is_command, make_excepthook
from luna_fairseq.engine.table import patch_fairseq
from luna_fairseq.requirements import require_fairseq

if is_command():
    # Without this, Hydra prints its own error report.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    sys.excepthook = make_excepthook(sys.excepthook)
require_fairseq()
patch_fairseq()
