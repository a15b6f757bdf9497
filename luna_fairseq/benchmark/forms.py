"""Option ``--force`` of the benchmark: use a given implementation of an operation wherever possible."""

import importlib.util
from contextlib import ExitStack, contextmanager
from typing import Dict, Iterator, Sequence, Tuple

from luna_fairseq.anchored.lookup import LOOKUP_FORMS
from luna_fairseq.anchored.pairs import PAIR_FORMS
from luna_fairseq.anchored.segments import LAYOUT_FORMS
from luna_fairseq.ops.absorbed import PACK_FORMS, UNPACK_FORMS
from luna_fairseq.ops.attention import SOFTMAX_FORMS
from luna_fairseq.ops.causal_luna.forms import CAUSAL_FORMS
from luna_fairseq.ops.causal_luna.inputs import PACK_WEIGHT_FORMS
from luna_fairseq.ops.causal_luna.recurrent import STEP_FORMS
from luna_fairseq.ops.forms import FormTable

FORM_TABLES: Dict[str, FormTable] = {
    "softmax": SOFTMAX_FORMS,
    "pack": PACK_FORMS,
    "unpack": UNPACK_FORMS,
    "causal": CAUSAL_FORMS,
    "pack-weights": PACK_WEIGHT_FORMS,
    "step": STEP_FORMS,
    "layout": LAYOUT_FORMS,
    "look-up": LOOKUP_FORMS,
    "pairs": PAIR_FORMS,
}
if importlib.util.find_spec("fairseq") is not None:
    from luna_fairseq.models.int8 import LINEAR8_FORMS
    from luna_fairseq.models.onednn_linear import LINEAR_FORMS

    FORM_TABLES.update(linear=LINEAR_FORMS, int8=LINEAR8_FORMS)
CHOICES = [f"{name}={form.name}" for name, table in FORM_TABLES.items() for form in table.forms]


@contextmanager
def force_forms(names: Sequence[str]) -> Iterator[Dict[str, Sequence[str]]]:
    """Context manager that forces an implementation for each operation in "OPERATION=IMPLEMENTATION" strings.

    It yields a dictionary that maps each operation to the names of the implementations that were chosen.
    Calls that name an implementation themselves do not count.
    """
    pairs: Sequence[Tuple[str, str]] = [tuple(name.split("=")) for name in names]  # type: ignore[misc]
    with ExitStack() as stack:
        yield {name: stack.enter_context(FORM_TABLES[name].force(form)) for name, form in pairs}
