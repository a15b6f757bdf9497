"""from_pretrained loads a checkpoint of its own kind and refuses any other."""

import pytest
from tiny_checkpoints import save

from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaLanguageModel, LunaMaskedLM, LunaModel

CLASSES = {"translation": LunaModel, "causal LM": LunaLanguageModel, "masked LM": LunaMaskedLM}


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("other", CLASSES)
def test_a_model_of_another_kind_is_refused(kind, other, tmp_path):
    path, data, model = save(kind, "one layer", tmp_path)
    given = str(tmp_path), path.name, str(data)
    if kind == other:
        CLASSES[kind].from_pretrained(*given)
        return
    own = type(model).__name__
    with pytest.raises(
        InputError, match=f"expected a checkpoint of a .*model, got {own}: use {own}.from_pretrained"
    ):
        CLASSES[other].from_pretrained(*given)
