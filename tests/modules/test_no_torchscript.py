"""Test that TorchScript and tracing are rejected with a clear message.

torch.jit.trace and torch.export keep the lengths of their example, and torch.jit.script supports only a part
of Python.
"""

import pytest
import torch
from tiny_luna import VARIANTS, batch, example, tiny_model

from luna_fairseq.errors import InputError

if torch.__version__ < "2":
    pytest.skip("torch 1 fails at other places first", allow_module_level=True)

EXPECTED_ERROR = pytest.raises(InputError, match="cannot be traced or scripted by torch.jit")


@pytest.mark.parametrize("variant", ["tied", "anchored", "softmax cross"])
def test_scripting(variant):
    model = tiny_model(**VARIANTS[variant])
    for module in (model, model.encoder, model.decoder):
        with EXPECTED_ERROR:
            torch.jit.script(module)


def test_tracing():
    model = tiny_model()
    source, target = (batch(x) for x in example())
    with EXPECTED_ERROR:
        torch.jit.trace(model, (source, source, target), strict=False)
    with EXPECTED_ERROR:
        torch.jit.trace(lambda tokens: model.decoder(tokens)[0], (target,))


@pytest.mark.skipif(
    not hasattr(getattr(torch, "compiler", None), "is_exporting"), reason="torch 2.7 says that it exports"
)
@pytest.mark.parametrize("variant", ["tied", "anchored", "softmax cross"])
def test_exporting(variant):
    source, target = (batch(x) for x in example())
    with EXPECTED_ERROR:
        torch.export.export(tiny_model(**VARIANTS[variant]), (source, source, target), strict=False)
