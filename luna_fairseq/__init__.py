"""Luna: Linear Unified Nested Attention (Ma et al., NeurIPS 2021) as a fairseq plugin."""

__version__ = "0.1.0"

import luna_fairseq.compat  # noqa: F401  first: it looks at what is underneath
import luna_fairseq.models  # noqa: F401
import luna_fairseq.optim  # noqa: F401
