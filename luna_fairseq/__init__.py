"""Luna: Linear Unified Nested Attention (Ma et al., NeurIPS 2021) as a fairseq plugin."""

__version__ = "0.1.0"

from luna_fairseq.errors import report_in_one_line

report_in_one_line()

import luna_fairseq.engine  # noqa: E402, F401  first: it looks at what is underneath

# isort: split
import luna_fairseq.lra.criterion  # noqa: E402, F401
import luna_fairseq.lra.task  # noqa: E402, F401
import luna_fairseq.models  # noqa: E402, F401
import luna_fairseq.models.softmax_ablation  # noqa: E402, F401
import luna_fairseq.optim  # noqa: E402, F401
