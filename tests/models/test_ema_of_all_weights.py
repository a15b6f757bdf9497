"""fairseq's moving average of the weights (--store-ema) covers every weight of the model."""

import copy

import pytest
import tiny_luna
import tiny_masked_lm
import tiny_models
import torch

from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA

BEFORE = {"encoder_normalize_before": True}
MODELS = {
    "translation": lambda: tiny_luna.tiny_model(**BEFORE, decoder_normalize_before=True),
    "translation, norms after": tiny_luna.tiny_model,
    "language model": lambda: tiny_models.language_model(decoder_normalize_before=True),
    "masked language model": lambda: tiny_masked_lm.tiny_model(**BEFORE),
    "classifier": lambda: tiny_models.classifier(**BEFORE),
}


@pytest.mark.parametrize("kind", MODELS)
def test_it_is_the_mean_of_all_weights(kind):
    """The final layer norm is covered, too.

    fairseq's average forgets the version of the model, and old versions have no final layer norm.
    """
    model = MODELS[kind]()
    before = copy.deepcopy(model.state_dict())
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.5))
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(1.0)
    average.step(model)
    found, now = average.get_model().state_dict(), model.state_dict()
    assert found.keys() == now.keys() == before.keys()
    pointers = [weights.data_ptr() for weights in now.values()]
    for name, weights in now.items():
        # fairseq decays weights once for each name that they have.
        decay = 0.5 ** pointers.count(weights.data_ptr())
        expected = weights if "version" in name else decay * before[name] + (1 - decay) * weights
        torch.testing.assert_close(found[name], expected, msg=name)
