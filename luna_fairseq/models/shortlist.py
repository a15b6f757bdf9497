"""Vocabulary shortlist: decode with the target pieces that may translate the sources of the batch.

The candidates of a batch are the special symbols, the target pieces that a lexicon lists for every sentence,
and the target pieces that the lexicon lists for the source pieces of the batch. Beam search only uses the
candidates. The output projection has a row for each candidate, so that no tensor has the width of the
dictionary. Log-probabilities are normalised over the candidates.
"""

from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn

from fairseq.data import Dictionary
from fairseq.search import PrefixConstrainedBeamSearch
from luna_fairseq.errors import InputError
from luna_fairseq.models.int8 import Linear8
from luna_fairseq.models.onednn_linear import OneDnnLinear
from luna_fairseq.text.lexicon import EVERY_SENTENCE, read_lexicon


class Shortlist:
    """Target pieces that may translate each source piece.

    Args:
        candidates: symbols of target pieces by the symbol of a source piece, or by :data:`EVERY_SENTENCE` for
            the candidates of every sentence.
        source: source dictionary.
        target: target dictionary.

    Attributes:
        table: target indices [S, N] of the candidates for each source index, padded with the padding symbol.
        always: mask [V], True at candidates of every sentence.

    Raises:
        InputError: A candidate is not in the target dictionary.

    Example:
        >>> dictionary = Dictionary()
        >>> for word in ("Hund", "dog", "Katze"):
        ...     _ = dictionary.add_symbol(word)
        >>> shortlist = Shortlist({"dog": ["Hund"], "": ["dog"]}, dictionary, dictionary)
        >>> shortlist.candidates_of(dictionary.encode_line("dog"))
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
    def load(cls, path: str, source: Dictionary, target: Dictionary) -> "Shortlist":
        """Read a lexicon.

        Args:
            path: file that luna-make-shortlist wrote.
            source: source dictionary.
            target: target dictionary.

        Returns:
            The shortlist.

        Raises:
            InputError: The file is not a lexicon, or belongs to another dictionary.
        """
        return cls(read_lexicon(Path(path)), source, target)

    def candidates_of(self, tokens: Tensor, more: Sequence[Tensor] = (), least: int = 0) -> Tensor:
        """Return the candidates of a batch.

        Args:
            tokens: source tokens, of any shape.
            more: tensors with indices of further candidates, of any shape (default: none).
            least: smallest number of candidates. If there are fewer, the first pieces of the dictionary are
                added (default: 0).

        Returns:
            Increasing indices [K] of the target dictionary.
        """
        found = self.always.clone()
        found[self.table[tokens.cpu().unique()].long().flatten()] = True
        for indices in more:
            found[indices.cpu().flatten()] = True
        missing = least - int(found.sum())
        if missing > 0:
            found[found.logical_not().nonzero().flatten()[:missing]] = True
        return found.nonzero().flatten().to(tokens.device)

    def generate(
        self,
        generate: Callable[..., List[List[Dict[str, Tensor]]]],
        generator: Any,
        sample: Dict[str, Any],
        prefix_tokens: Optional[Tensor] = None,
        constraints: Optional[Tensor] = None,
        bos_token: Optional[int] = None,
    ) -> List[List[Dict[str, Tensor]]]:
        """Generate translations of a batch from its candidates.

        The tokens of prefixes and constraints and the first token are also candidates.

        Args:
            generate: method ``_generate`` of ``generator``.
            generator: fairseq's generator, whose models have output projections.
            sample: batch of fairseq.
            prefix_tokens: first tokens [B, T] of the translations (default: None, no prefixes).
            constraints: packed constraints [B, M] (default: None, no constraints).
            bos_token: first token of the input of the decoder (default: None, the end symbol).

        Returns:
            Hypotheses of each sentence.

        Raises:
            InputError: The search depends on indices of the dictionary.
        """
        check_generator(generator)
        tokens = sample["net_input"]["src_tokens"]
        more = [x for x in (prefix_tokens, constraints) if x is not None]
        if constraints is not None:
            more[-1] = constraints[:, 1:]  # without the number of constraints
        if bos_token is not None:
            more.append(torch.tensor([bos_token]))
        # Beam search chooses 2 n candidates for n hypotheses.
        pieces = self.candidates_of(tokens, more, min(len(self.always), 2 * generator.beam_size + 1))
        places = torch.zeros(len(self.always), dtype=torch.long, device=pieces.device)
        places[pieces] = torch.arange(len(pieces), device=pieces.device)
        if constraints is not None:
            constraints = torch.cat([constraints[:, :1], places[constraints[:, 1:]]], dim=1)
        with narrowed(generator, pieces, places):
            found = generate(
                sample,
                None if prefix_tokens is None else places[prefix_tokens],
                constraints,
                None if bos_token is None else int(places[bos_token]),
            )
        for hypotheses in found:
            for hypothesis in hypotheses:
                hypothesis["tokens"] = pieces[hypothesis["tokens"]]
        return found


def check_generator(generator: Any) -> None:
    """Check that a generator can search among the candidates of a batch.

    Args:
        generator: fairseq's generator.

    Raises:
        InputError: The generator also uses the scores of a language model, or a function of the user that
            restricts the tokens.
    """
    if generator.lm_model is not None:
        raise InputError(
            "a shortlist cannot be combined with a language model, which scores the whole dictionary: "
            "leave out --shortlist or --lm-path"
        )
    if isinstance(generator.search, PrefixConstrainedBeamSearch):
        raise InputError(
            "a shortlist cannot be combined with prefix_allowed_tokens_fn, which reads indices of the whole "
            "dictionary: leave out one of them"
        )


@contextmanager
def narrowed(generator: Any, pieces: Tensor, places: Tensor) -> Iterator[None]:
    """Context manager in which a generator and its models only use the candidates of a batch.

    The tokens of the generator are then indices of ``pieces``. Special symbols keep their indices, because
    they are the first pieces of every dictionary.

    Args:
        generator: fairseq's generator.
        pieces: increasing indices [K] of the candidates in the target dictionary.
        places: index [V] of each piece of the dictionary in ``pieces``.
    """
    ensemble, size, suppressed = generator.model, generator.vocab_size, generator.token_indices_to_suppress
    decoders = [model.decoder for model in ensemble.models]
    projections = [decoder.output_projection for decoder in decoders]
    forward = ensemble.forward_decoder

    def forward_decoder(tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        return forward(pieces[tokens], *args, **kwargs)

    try:
        for decoder, projection in zip(decoders, projections):
            decoder.output_projection = select_outputs(projection, pieces)
        ensemble.forward_decoder, generator.vocab_size = forward_decoder, len(pieces)
        if suppressed is not None:
            kept = torch.isin(suppressed.to(pieces), pieces)
            generator.token_indices_to_suppress = places[suppressed.to(pieces)[kept]]
        yield
    finally:
        for decoder, projection in zip(decoders, projections):
            decoder.output_projection = projection
        del ensemble.forward_decoder
        generator.vocab_size, generator.token_indices_to_suppress = size, suppressed


def select_outputs(projection: Any, outputs: Tensor) -> nn.Module:
    """Return a linear layer that computes some of the outputs of another layer.

    Args:
        projection: :class:`torch.nn.Linear`, :class:`OneDnnLinear` or :class:`Linear8`.
        outputs: indices [K] of the outputs.
    """
    if isinstance(projection, Linear8):
        return projection.select(outputs)
    weight, bias = projection.weight, getattr(projection, "bias", None)
    selected = nn.Linear(weight.size(1), len(outputs), bias is not None, device="meta")
    selected.weight = nn.Parameter(weight.index_select(0, outputs), requires_grad=False)
    if bias is not None:
        selected.bias = nn.Parameter(bias.index_select(0, outputs), requires_grad=False)
    return OneDnnLinear(selected) if isinstance(projection, OneDnnLinear) else selected
