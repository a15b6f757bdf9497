"""Vocabulary shortlist: restrict beam search to target pieces that may translate the sources of a batch.

A piece is an entry of a dictionary, usually a subword. For each source piece, a lexicon lists the target
pieces that may translate it, the candidates. Further candidates apply to every sentence. Special symbols are
always candidates. The output projection is computed for the candidates only, and log-probabilities are
normalized over them.
"""

import logging
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn

from fairseq.data import Dictionary
from luna_fairseq.checks.same_training import fingerprint
from luna_fairseq.errors import InputError
from luna_fairseq.models.bfloat16_linear import BFloat16Linear
from luna_fairseq.models.int8 import Linear8
from luna_fairseq.models.onednn_linear import OneDnnLinear
from luna_fairseq.ops.absorbed import has_hooks, is_plain_linear
from luna_fairseq.text.lexicon import EVERY_SENTENCE, read_lexicon

logger = logging.getLogger(__name__)


class Shortlist:
    """Target pieces that may translate each source piece ("candidates"), to restrict beam search.

    Args:
        candidates: dictionary from source piece to target pieces. The key :data:`EVERY_SENTENCE` holds
            candidates for every sentence. Source pieces that ``source`` lacks are ignored, as they occur in
            no input.
        source: source dictionary.
        target: target dictionary with V pieces, which must include all candidates.

    Attributes:
        table: indices of the candidates in the target dictionary, one row per piece of the source dictionary,
            padded with the padding index.
        always: mask [V], True at special symbols and at the candidates for every sentence.

    Raises:
        InputError: The target dictionary lacks a candidate.

    Example:
        >>> dictionary = Dictionary()
        >>> for word in ("Hund", "dog", "Katze"):
        ...     _ = dictionary.add_symbol(word)
        >>> shortlist = Shortlist({"dog": ["Hund"], "": ["dog"]}, dictionary, dictionary)
        >>> shortlist.find_candidates(dictionary.encode_line("dog"))
        tensor([0, 1, 2, 3, 4, 5])
    """

    def __init__(self, candidates: Mapping[str, Sequence[str]], source: Dictionary, target: Dictionary):
        for pieces in candidates.values():
            for piece in pieces:
                if piece not in target:
                    raise InputError(
                        f"the shortlist has the piece {piece!r}, which the target dictionary lacks: make it "
                        "with luna-make-shortlist from the data that the model was trained on"
                    )
        most = max(map(len, candidates.values()), default=0)
        self.table = torch.full((len(source), most), target.pad(), dtype=torch.int32)
        for piece, targets in candidates.items():
            if piece in source:
                indices = [target.index(x) for x in targets]
                self.table[source.index(piece), : len(indices)] = torch.tensor(indices, dtype=torch.int32)
        self.always = torch.zeros(len(target), dtype=torch.bool)
        self.always[: target.nspecial] = True
        self.always[[target.index(x) for x in candidates.get(EVERY_SENTENCE, ())]] = True

    @classmethod
    def load(cls, path: str, source: Dictionary, target: Dictionary, languages: str = "") -> "Shortlist":
        """Load a file written by ``luna-make-shortlist``.

        Raise InputError if the file was made for other dictionaries or for other ``languages``, such as
        "de-en". If ``languages`` is empty, they are not checked. The model's dictionaries may have additional
        symbols at the end. If the file names no dictionaries, a warning is logged.
        """
        lexicon = read_lexicon(Path(path))
        if not lexicon.languages:
            logger.warning(
                f"{path} does not say which dictionaries it was made for. Check that they are the model's"
            )
        elif languages and languages != lexicon.languages:
            raise InputError(
                f"the shortlist {path} was made for {lexicon.languages}, the model translates {languages}: "
                "make one with luna-make-shortlist -s and -t"
            )
        else:
            for side, dictionary, made_for in (
                ("source", source, lexicon.source),
                ("target", target, lexicon.target),
            ):
                entries, _, _ = made_for.partition("-")
                # Some tasks append symbols, such as languages, to the dictionaries of the data.
                if not entries.isdecimal() or identify(dictionary, int(entries)) != made_for:
                    raise InputError(
                        f"the shortlist {path} was made for another {side} dictionary ({made_for}) than the "
                        f"model's ({identify(dictionary)}): make one from the data of the training"
                    )
        return cls(lexicon.candidates, source, target)

    def find_candidates(self, tokens: Tensor, extra: Sequence[Tensor] = (), minimum: int = 0) -> Tensor:
        """Return the sorted indices of target pieces that may translate the source ``tokens``.

        The result also contains the indices in ``extra``, such as forced prefix tokens. The search needs at
        least ``minimum`` indices to fill its beam. If there are fewer, the lowest missing indices are added.
        """
        found = self.always.clone()
        found[self.table[tokens.cpu().unique().long()].long().flatten()] = True
        for indices in extra:
            found[indices.cpu().flatten()] = True
        missing = minimum - int(found.sum())
        if missing > 0:
            found[found.logical_not().nonzero().flatten()[:missing]] = True
        return found.nonzero().flatten().to(tokens.device)


def identify(dictionary: Dictionary, entries: Optional[int] = None) -> str:
    """Return the size of a dictionary and a hash of its pieces, such as "8000-5140f07260ee51d5".

    If ``entries`` is given, only the first ``entries`` pieces are used.
    """
    return fingerprint(dictionary.symbols[:entries]).replace(" entries, ", "-")


class SelectedOutputs(nn.Module):
    """Layer that computes all outputs of another layer, and returns those at the N indices ``outputs`` [N].

    This class is used for layers with hooks or of an unknown class, whose weights cannot be selected.
    """

    def __init__(self, layer: nn.Module, outputs: Tensor):
        super().__init__()
        self.layer, self.outputs = layer, outputs

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x [..., in_features], and return the outputs [..., N] at the N indices."""
        return self.layer(x).index_select(-1, self.outputs)


def select_outputs(projection: Any, outputs: Tensor) -> nn.Module:
    """Return a layer that computes only the outputs of a projection at the N indices ``outputs`` [N].

    The layer has the class of the projection if the weights can be selected. Otherwise, it is a
    :class:`SelectedOutputs`.
    """
    if isinstance(projection, (Linear8, BFloat16Linear)) and not has_hooks(projection):
        return projection.select(outputs)
    if not is_plain_linear(projection):
        return SelectedOutputs(projection, outputs)
    weight, bias = projection.weight, projection.bias
    selected = nn.Linear(weight.size(1), len(outputs), bias is not None, device="meta")
    selected.weight = nn.Parameter(weight.index_select(0, outputs), requires_grad=False)
    if bias is not None:
        selected.bias = nn.Parameter(bias.index_select(0, outputs), requires_grad=False)
    return OneDnnLinear(selected) if isinstance(projection, OneDnnLinear) else selected
