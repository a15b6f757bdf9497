"""The classifier of long sequences with any attention: ``--arch peer_lra_<task> --attention NAME``."""

from argparse import Namespace
from typing import Any

from fairseq.models import register_model
from luna_fairseq.models import luna_classifier
from luna_fairseq.models.architectures import Presets, register_architectures
from luna_fairseq.models.luna import flat_options
from luna_fairseq.models.luna_classifier import LunaClassifier, build_encoder, check_options
from luna_fairseq.models.luna_classifier_config import LunaClassifierConfig
from luna_fairseq.peers.config import PeerClassifierConfig
from luna_fairseq.peers.layers import PeerEncoder


@register_model("peer_lra", dataclass=PeerClassifierConfig)
class PeerClassifier(LunaClassifier):
    """The twin of ``transformer_lra_<task>`` with another attention.

    Args:
        args: namespace with the fields of :class:`PeerClassifierConfig`, all filled in
        encoder: :class:`PeerEncoder`
        pairs: sequences come in pairs, both through the one encoder (default: False)
    """

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "PeerClassifier":
        """Build the model for the dictionary of ``task``; for pixels where it has none.

        Raises:
            InputError: an attention that has no bidirectional form, or options that do not go together
        """
        options = {**vars(LunaClassifierConfig()), **flat_options(cfg, PeerClassifierConfig())}
        args = Namespace(**{**options, "layer_type": "transformer"})
        check_options(args, "image" if task.source_dictionary is None else "text")
        return cls(args, build_encoder(args, task.source_dictionary, PeerEncoder), task.pairs)


ARCHITECTURES: Presets = {"peer_lra": {}}
for _name, _preset in luna_classifier.ARCHITECTURES.items():
    if _preset.get("layer_type") == "transformer":  # the Transformer's twin
        _same = {option: value for option, value in _preset.items() if option != "layer_type"}
        ARCHITECTURES[_name.replace("transformer", "peer")] = _same
register_architectures("peer_lra", ARCHITECTURES)
