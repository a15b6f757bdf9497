"""Vocabulary shortlist: restrict beam search to target subwords that may translate the sources of a batch.

A lexicon lists these candidates per source subword, plus candidates for every sentence. Special symbols are
always candidates.

The output projection is computed for the candidates only, so no tensor is as wide as the whole dictionary.
Log-probabilities are normalized over the candidates.
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
    """Target subwords that may translate each source subword.

    Args:
        candidates: target subwords that may translate each source subword, keyed by source subword. The key
            :data:`EVERY_SENTENCE` holds the candidates of every sentence.
        source: source dictionary.
        target: target dictionary.

    Attributes:
        table: target indices of the candidates, one row per entry of the source dictionary. Rows are padded
            with the padding index.
        always: mask [target vocabulary size], True at candidates of every sentence.

    Raises:
        InputError: A candidate is not in the target dictionary.

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
    def load(cls, path: str, source: Dictionary, target: Dictionary) -> "Shortlist":
        """Load a shortlist from a lexicon file.

        Args:
            path: file written by ``luna-make-shortlist``.
            source: source dictionary.
            target: target dictionary.

        Returns:
            The shortlist.

        Raises:
            InputError: The file is not a lexicon, or belongs to a different dictionary.
        """
        return cls(read_lexicon(Path(path)), source, target)

    def find_candidates(self, tokens: Tensor, extra: Sequence[Tensor] = (), minimum: int = 0) -> Tensor:
        """Return the candidates of a batch.

        Args:
            tokens: source tokens, of any shape.
            extra: target indices of additional candidates, tensors of any shape (default: none).
            minimum: minimum number of candidates. If there are fewer, the first dictionary entries that are
                not yet candidates are added (default: 0).

        Returns:
            Target indices [number of candidates], in increasing order.
        """
        found = self.always.clone()
        found[self.table[tokens.cpu().unique()].long().flatten()] = True
        for indices in extra:
            found[indices.cpu().flatten()] = True
        missing = minimum - int(found.sum())
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
        """Translate a batch with a generator restricted to the candidates of the batch.

        The tokens of ``prefix_tokens``, ``constraints`` and ``bos_token`` also become candidates.

        Args:
            generate: original ``_generate`` method of ``generator``.
            generator: fairseq's ``SequenceGenerator``.
            sample: fairseq's batch.
            prefix_tokens: forced first tokens [batch size, length] of the translations (default: None, no
                prefixes).
            constraints: fairseq's packed lexical constraints [batch size, length] (default: None, no
                constraints).
            bos_token: first input token of the decoder (default: None, the end-of-sentence symbol).

        Returns:
            One list of hypotheses per sentence. Their tokens are indices into the target dictionary.

        Raises:
            InputError: The generator also uses a language model or ``prefix_allowed_tokens_fn``.
        """
        check_generator(generator)
        tokens = sample["net_input"]["src_tokens"]
        extra = [x for x in (prefix_tokens, constraints) if x is not None]
        if constraints is not None:
            extra[-1] = constraints[:, 1:]  # without the constraint count
        if bos_token is not None:
            extra.append(torch.tensor([bos_token]))
        # For n hypotheses, beam search needs at least 2 n tokens to choose from.
        candidates = self.find_candidates(tokens, extra, min(len(self.always), 2 * generator.beam_size + 1))
        numbers = torch.zeros(len(self.always), dtype=torch.long, device=candidates.device)
        numbers[candidates] = torch.arange(len(candidates), device=candidates.device)
        if constraints is not None:
            constraints = torch.cat([constraints[:, :1], numbers[constraints[:, 1:]]], dim=1)
        with restrict_to_candidates(generator, candidates, numbers):
            found = generate(
                sample,
                None if prefix_tokens is None else numbers[prefix_tokens],
                constraints,
                None if bos_token is None else int(numbers[bos_token]),
            )
        for hypotheses in found:
            for hypothesis in hypotheses:
                hypothesis["tokens"] = candidates[hypothesis["tokens"]]
        return found


def check_generator(generator: Any) -> None:
    """Check that a generator supports shortlists.

    Args:
        generator: fairseq's ``SequenceGenerator``.

    Raises:
        InputError: The generator also uses language model scores or a user-defined
            ``prefix_allowed_tokens_fn``.
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
def restrict_to_candidates(generator: Any, candidates: Tensor, numbers: Tensor) -> Iterator[None]:
    """Context manager that restricts a generator and its models to the candidates of a batch.

    Inside the context, token t of the generator corresponds to ``candidates[t]``. Special symbols keep their
    indices, because they are the first entries of every dictionary.

    Args:
        generator: fairseq's ``SequenceGenerator``, restored on exit.
        candidates: target indices [number of candidates], in increasing order.
        numbers: for each dictionary entry, its index in ``candidates``, [target vocabulary size]; 0 for
            entries that are not candidates.
    """
    ensemble, size, suppressed = generator.model, generator.vocab_size, generator.token_indices_to_suppress
    decoders = [model.decoder for model in ensemble.models]
    projections = [decoder.output_projection for decoder in decoders]
    forward = ensemble.forward_decoder

    def forward_decoder(tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        return forward(candidates[tokens], *args, **kwargs)

    try:
        for decoder, projection in zip(decoders, projections):
            decoder.output_projection = select_outputs(projection, candidates)
        ensemble.forward_decoder, generator.vocab_size = forward_decoder, len(candidates)
        if suppressed is not None:
            kept = torch.isin(suppressed.to(candidates), candidates)
            generator.token_indices_to_suppress = numbers[suppressed.to(candidates)[kept]]
        yield
    finally:
        for decoder, projection in zip(decoders, projections):
            decoder.output_projection = projection
        del ensemble.forward_decoder
        generator.vocab_size, generator.token_indices_to_suppress = size, suppressed


def select_outputs(projection: Any, outputs: Tensor) -> nn.Module:
    """Return a linear layer that computes a subset of another layer's outputs.

    Args:
        projection: :class:`torch.nn.Linear`, :class:`OneDnnLinear` or :class:`Linear8`.
        outputs: indices of the outputs to compute, [number of selected outputs].

    Returns:
        Layer of the same class.
    """
    if isinstance(projection, Linear8):
        return projection.select(outputs)
    weight, bias = projection.weight, getattr(projection, "bias", None)
    selected = nn.Linear(weight.size(1), len(outputs), bias is not None, device="meta")
    selected.weight = nn.Parameter(weight.index_select(0, outputs), requires_grad=False)
    if bias is not None:
        selected.bias = nn.Parameter(bias.index_select(0, outputs), requires_grad=False)
    return OneDnnLinear(selected) if isinstance(projection, OneDnnLinear) else selected
