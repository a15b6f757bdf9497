"""Beam search for the models of this project.

The search returns the hypotheses and scores of fairseq's ``SequenceGenerator``, but is faster. fairseq sorts
the tokens of all hypotheses of a sentence together. This search first finds the best tokens of each
hypothesis, among which are the best tokens of the sentence.

``--max-len-a`` limits each translation by its own source. In fairseq, the longest source of the batch counts.
``--min-len`` and suppressed tokens apply after the prefix of each sentence. In fairseq, they apply only after
the longest prefix of the batch.

Letters: B sentences of K hypotheses each, so R = B * K rows; V tokens in the dictionary; N columns of
log-probabilities, one per token that the search may choose (V, or the candidates of a vocabulary shortlist);
S source tokens.
"""

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.search import BeamSearch, DiverseBeamSearch, PrefixConstrainedBeamSearch
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator, SequenceGeneratorWithAlignment
from luna_fairseq.errors import InputError
from luna_fairseq.models.shortlist import select_outputs

# Entry of a batch's net_input with the target tokens to which a shortlist restricts the search.
_CANDIDATES = "target_candidates"
_BLOCK = 128  # columns whose maximum find_largest compares


class EncodedBatch(NamedTuple):
    """Encoder outputs of a batch, and output projections restricted to tokens that beam search may choose.

    Attributes:
        outputs: encoder output of each model. Empty for language models.
        candidates: tokens [N] that the search may choose, in increasing order. None if it may choose all
            tokens.
        projections: output projection of each model to the candidates. Empty if ``candidates`` is None.
    """

    outputs: Any
    candidates: Optional[Tensor]
    projections: Sequence[nn.Module]

    def find_columns(self, tokens: Tensor) -> Tensor:
        """Convert dictionary indices of candidate tokens to columns of the log-probabilities."""
        return tokens if self.candidates is None else torch.searchsorted(self.candidates, tokens)

    def find_tokens(self, columns: Tensor) -> Tensor:
        return columns if self.candidates is None else self.candidates[columns]


class Ensemble(EnsembleModel):
    """fairseq's ensemble of models, with output projections that may be restricted to candidate tokens.

    If ``needs_weights`` is True, attention weights over the source are returned. ``begin_from`` is a function
    that maps the number of hypotheses to the decoder state after earlier text. It is None if there is no
    earlier text.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        needs_weights: bool = False,
        begin_from: Optional[Callable[[int], Any]] = None,
    ):
        super().__init__(models)
        self.needs_weights, self.begin_from = needs_weights, begin_from

    def forward_encoder(self, net_input: Dict[str, Any]) -> EncodedBatch:
        inputs = {name: value for name, value in net_input.items() if name != _CANDIDATES}
        candidates, projections = net_input.get(_CANDIDATES), []
        if candidates is not None:
            decoders = [model.decoder for model in self.models]
            projections = [select_outputs(decoder.output_projection, candidates) for decoder in decoders]
        return EncodedBatch(super().forward_encoder(inputs), candidates, projections)

    def reorder_encoder_out(self, encoded: EncodedBatch, new_order: Tensor) -> EncodedBatch:
        return encoded._replace(outputs=super().reorder_encoder_out(encoded.outputs, new_order))

    def compute_lprobs(
        self, tokens: Tensor, encoded: EncodedBatch, states: List[Dict[str, Any]], temperature: float
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Compute log-probabilities [R, N] of N possible next tokens for R hypotheses, and attention weights.

        The arguments are the tokens so far [R, T], the encoded sources, the incremental state of each model,
        and the temperature. The weights [R, S] over S source tokens are None if the models return none.
        """
        lprobs, weights = [], []
        options = {} if self.needs_weights else {"alignment_layer": -1}  # the weights of no layer
        for i, (model, state) in enumerate(zip(self.models, states)):
            output = encoded.outputs[i] if self.has_encoder() else None
            if self.begin_from is not None and not state:
                model.decoder.continue_from(state, self.begin_from(len(tokens)))
            features, extra = model.decoder(
                tokens, encoder_out=output, incremental_state=state, features_only=True, **options
            )
            project = model.decoder.output_layer if encoded.candidates is None else encoded.projections[i]
            logits = project(features[:, -1:])
            if temperature != 1:
                logits = logits / temperature
            # torch's log-softmax takes less time than its log-sum-exp.
            lprobs.append(model.get_normalized_probs((logits, extra), log_probs=True, sample=None)[:, -1])
            attention = extra["attn"][0] if extra and extra.get("attn") else None
            if attention is not None and self.needs_weights:
                weights.append(attention[:, -1])
        mean_weights = torch.stack(weights).mean(dim=0) if weights else None
        if len(lprobs) == 1:
            return lprobs[0], mean_weights
        return torch.stack(lprobs).logsumexp(dim=0) - math.log(len(lprobs)), mean_weights

    def forward_decoder(
        self,
        tokens: Tensor,
        encoded: EncodedBatch,
        incremental_states: List[Dict[str, Any]],
        temperature: float = 1.0,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Expand the result of :meth:`compute_lprobs` to all V tokens, [R, V]. Non-candidates get -inf."""
        lprobs, weights = self.compute_lprobs(tokens, encoded, incremental_states, temperature)
        if encoded.candidates is not None:
            size = len(self.single_model.decoder.dictionary)
            restricted, lprobs = lprobs, lprobs.new_full((len(lprobs), size), -math.inf)
            lprobs[:, encoded.candidates] = restricted
        return lprobs, weights


class RepeatBlock(NGramRepeatBlock):
    """Filter that prevents the repetition of n-grams (``--no-repeat-ngram-size``).

    fairseq's own class compares trailing padding in place of the newest tokens, and thus finds no repetition.
    """

    def __init__(self, no_repeat_ngram_size: int):
        super().__init__(no_repeat_ngram_size, use_extension=False)

    def find(self, tokens: Tensor) -> Tuple[Tensor, Tensor]:
        """Find the next tokens that would repeat an n-gram of any of the R hypotheses ``tokens`` [R, T].

        Return two vectors of equal length: hypothesis indices, and tokens that would repeat an n-gram of the
        hypothesis. An index may occur several times.
        """
        n, length = self.no_repeat_ngram_size, tokens.size(1)
        if length < n:
            return tokens.new_empty(0), tokens.new_empty(0)
        ngrams = tokens.unfold(1, n, 1)
        newest = tokens[:, None, length - n + 1 :]
        rows, places = (ngrams[:, :, :-1] == newest).all(dim=2).nonzero(as_tuple=True)
        return rows, ngrams[rows, places, -1]

    def forward(self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int) -> Tensor:
        """Set the log-probabilities [R, V] of tokens that would repeat an n-gram to -inf, in place.

        The token that a prefix forces, the only one with a finite log-probability, may repeat an n-gram.
        """
        rows, repeated = self.find(tokens[:, 1 : step + 1])
        is_free = (lprobs.isfinite().sum(dim=1) > 1)[rows]
        lprobs[rows[is_free], repeated[is_free]] = -math.inf
        return lprobs


class Generator(SequenceGenerator):
    """Beam search for this project's models, with the arguments of fairseq's ``SequenceGenerator``.

    Sampling, diverse search, constraints, language model fusion and ``--match-source-len`` use fairseq's
    search loop instead. A vocabulary shortlist restricts all of these searches to tokens that can occur in a
    translation of the source.
    """

    model: Any
    repeat_ngram_blocker: Any
    needs_weights = False

    def __init__(
        self,
        models: Any,
        tgt_dict: Any,
        *args: Any,
        begin_from: Optional[Callable[[int], Any]] = None,
        **kwargs: Any,
    ):
        super().__init__(models, tgt_dict, *args, **kwargs)
        self.model = Ensemble(list(self.model.models), self.needs_weights, begin_from)
        if self.repeat_ngram_blocker is not None:
            self.repeat_ngram_blocker = RepeatBlock(self.repeat_ngram_blocker.no_repeat_ngram_size)

    def _generate(
        self,
        sample: Dict[str, Any],
        prefix_tokens: Optional[Tensor] = None,
        constraints: Optional[Tensor] = None,
        bos_token: Optional[int] = None,
    ) -> List[List[Dict[str, Tensor]]]:
        """Generate hypotheses for a batch, with the search algorithm that the options select."""
        net_input = sample["net_input"]
        shortlist = getattr(self.model.single_model, "shortlist", None)
        if shortlist is not None:
            if isinstance(self.search, PrefixConstrainedBeamSearch):
                raise InputError(
                    "prefix_allowed_tokens_fn may allow only pieces that the shortlist lacks: load the model "
                    "without shortlist"
                )
            needed = [torch.tensor([self.eos])]
            needed += [] if prefix_tokens is None else [prefix_tokens]
            needed += [] if constraints is None else [constraints[:, 1:]]  # without their number
            # For K hypotheses, beam search needs 2 K tokens besides padding to choose from.
            least = min(self.vocab_size, 2 * self.beam_size + 1)
            candidates = shortlist.find_candidates(net_input["src_tokens"], needed, least)
            net_input = {**net_input, _CANDIDATES: candidates}
            sample = {**sample, "net_input": net_input}
        if isinstance(self.search, DiverseBeamSearch):
            # It would take the numbers of the sentences in the data set for their places in the batch.
            sample = {name: value for name, value in sample.items() if name != "id"}
        if self.match_source_len:
            return super()._generate(sample, prefix_tokens, constraints, bos_token)
        last = self._find_last_step(net_input["src_tokens"].size(1), prefix_tokens, constraints)
        is_plain = type(self.search) is BeamSearch and self.lm_model is None
        if not is_plain or constraints is not None:
            return super()._generate(sample, prefix_tokens, constraints, bos_token)
        return BatchSearch(self, net_input, last, prefix_tokens, bos_token).run()

    def is_finished(self, step: int, unfin_idx: int, max_len: Any, *args: Any) -> bool:
        """Return True if a sentence has all its hypotheses, or ends in this step.

        ``max_len`` is the last step of all sentences or, in :class:`BatchSearch`, a list with that of each.
        """
        last = max_len[unfin_idx] if isinstance(max_len, list) else max_len
        return super().is_finished(step, unfin_idx, last, *args)

    def _prefix_tokens(
        self, step: int, lprobs: Tensor, scores: Tensor, tokens: Tensor, prefix_tokens: Tensor, beam_size: int
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """Force the tokens of the prefixes. ``--min-len`` and suppressed tokens apply after each prefix."""
        rows = prefix_tokens[:, step].eq(self.pad).repeat_interleave(beam_size).nonzero()
        if step < self.min_len:
            lprobs[rows, self.eos] = -math.inf
        if self.token_indices_to_suppress is not None:
            lprobs[rows, self.token_indices_to_suppress] = -math.inf
        return super()._prefix_tokens(step, lprobs, scores, tokens, prefix_tokens, beam_size)

    def _find_last_step(
        self, source_length: int, prefix: Optional[Tensor], constraints: Optional[Tensor]
    ) -> int:
        """Return the zero-based index of the last step of a batch, in which all remaining hypotheses end.

        Raises InputError if the shortest permitted output, the prefix [B, length] or the packed constraints
        of a sentence do not end before it.
        """
        last = min(int(self.max_len_a * source_length + self.max_len_b), self.max_len - 1)
        if self.min_len > last:
            raise InputError(
                f"--min-len {self.min_len} exceeds the maximum length {last}: give a smaller --min-len, or a "
                "larger --max-len-b"
            )
        if prefix is not None:
            longest = int((prefix.ne(self.pad) & prefix.ne(self.eos)).sum(dim=1).max())
            if longest > last:
                raise InputError(
                    f"a prompt of {longest} tokens exceeds the maximum length {last}: shorten it, or give a "
                    "larger --max-len-b"
                )
        if constraints is not None:
            longest = int(constraints[:, 1:].ne(0).sum(dim=1).max())  # after their number; 0 ends each
            if longest > last:
                raise InputError(
                    f"constraints of {longest} tokens exceed the maximum length {last}: shorten them, or "
                    "give a larger --max-len-b"
                )
        return last


class AlignedGenerator(SequenceGeneratorWithAlignment, Generator):
    """Beam search that also aligns target words with source words (``--print-alignment``)."""

    needs_weights = True

    @torch.no_grad()
    def generate(self, models: Any, sample: Dict[str, Any], **kwargs: Any) -> List[List[Dict[str, Any]]]:
        """Generate hypotheses, and align each of them. With constraints, they may be fewer than the beam."""
        found = self._generate(sample, **kwargs)
        for source, hypotheses in zip(sample["net_input"]["src_tokens"].cpu(), found):
            for hypothesis in hypotheses:
                weights, tokens = hypothesis["attention"].t().cpu(), hypothesis["tokens"].cpu()
                alignment = self.extract_alignment(weights, source, tokens, self.pad, self.eos)
                hypothesis["alignment"] = alignment
        return found


class Candidates(NamedTuple):
    """Best continuations of B sentences with K hypotheses each, at most 2 K per sentence, best first.

    The fields, all [B, n] with n <= 2 K, hold scores, last tokens, and the rows of the continued hypotheses.
    """

    scores: Tensor
    tokens: Tensor
    rows: Tensor


class BatchSearch:
    """Beam search for one batch of B sentences with K hypotheses each, R = B * K.

    Args:
        generator: generator with the models and the search options.
        net_input: inputs of the encoder or, for a language model, of the decoder.
        last: zero-based index of the last step of the batch, in which all remaining hypotheses end.
        prefix: first tokens [B, length] that translations must begin with, padded on the right. None if there
            is no prefix.
        bos_token: symbol before the first token (default: the end-of-sentence symbol).

    Attributes:
        tokens: initial symbol and generated tokens [R, last + 2], padded on the right.
        scores: cumulative log-probabilities [R, last + 1], one for each token so far.
        attention: attention weights [R, S, last + 2] over the source. None if the models return no weights.
        limits: index of the last step of each sentence.
    """

    def __init__(
        self,
        generator: Generator,
        net_input: Any,
        last: int,
        prefix: Optional[Tensor],
        bos_token: Optional[int],
    ):
        source = net_input["src_tokens"]
        B, K, device = len(source), generator.beam_size, source.device
        self.generator, self.model, self.beam_size = generator, generator.model, K
        self.prefix, self.limits = prefix, self._find_limits(source, last, prefix)
        self.last = max(self.limits)
        self.order = torch.arange(B, device=device).repeat_interleave(K)
        self.encoded = self.model.reorder_encoder_out(self.model.forward_encoder(net_input), self.order)
        self.states: List[Dict[str, Any]] = [{} for _ in self.model.models]
        special = torch.tensor([generator.pad, generator.unk, generator.eos], device=device)
        self.pad_column, self.unk_column, self.eos_column = self.encoded.find_columns(special).tolist()
        self.suppressed = self._find_suppressed_columns(device)
        self.tokens = torch.full((B * K, self.last + 2), generator.pad, device=device)
        self.tokens[:, 0] = generator.eos if bos_token is None else bos_token
        self.scores = torch.zeros(B * K, self.last + 1, device=device)
        self.attention: Optional[Tensor] = None
        # Places of the beam that are not used, because fewer than K candidates go on (tiny dictionaries).
        self.unused = torch.zeros(B, K, dtype=torch.bool, device=device)
        self.hypotheses: List[List[Dict[str, Tensor]]] = [[] for _ in range(B)]
        self.is_finished = [False] * B

    def run(self) -> List[List[Dict[str, Tensor]]]:
        """Run the search. Return the finished hypotheses of each sentence, best first."""
        for step in range(self.last + 1):
            lprobs = self._compute_lprobs(step)
            candidates = self._find_candidates(step, lprobs)
            ends = self._find_ends(candidates)
            finished = self._store_finished(step, candidates, ends)
            if all(self.is_finished):
                break
            if step < self.last:
                self._continue_with(step, candidates, ends, finished)
        else:
            raise InputError(
                "no translation of a sentence has a finite score: its prefix begins with the end of the "
                "sentence, or the model computes NaN or infinity"
            )
        for number, hypotheses in enumerate(self.hypotheses):
            scores = torch.tensor([float(hypothesis["score"]) for hypothesis in hypotheses])
            order = scores.sort(descending=True).indices.tolist()
            self.hypotheses[number] = [hypotheses[i] for i in order]
        return self.hypotheses

    def _find_limits(self, source: Tensor, last: int, prefix: Optional[Tensor]) -> List[int]:
        """Return the last step of each sentence, at most ``last``, in which its remaining hypotheses end."""
        options = self.generator
        if not options.max_len_a:
            return [last] * len(source)
        lengths, least = source.ne(options.pad).sum(dim=1).tolist(), [options.min_len] * len(source)
        if prefix is not None:
            is_token = prefix.ne(options.pad) & prefix.ne(options.eos)
            least = is_token.sum(dim=1).clamp(min=options.min_len).tolist()
        limits = (int(options.max_len_a * length + options.max_len_b) for length in lengths)
        return [min(last, max(pair)) for pair in zip(limits, least)]

    def _find_suppressed_columns(self, device: torch.device) -> Optional[Tensor]:
        """Return the log-probability columns of suppressed tokens. None if no token is suppressed."""
        tokens = self.generator.token_indices_to_suppress
        if tokens is None:
            return None
        tokens = tokens.to(device)
        if self.encoded.candidates is not None:
            tokens = tokens[torch.isin(tokens, self.encoded.candidates)]
        return self.encoded.find_columns(tokens)

    def _compute_lprobs(self, step: int) -> Tensor:
        """Run the decoders on the newest tokens. Return the log-probabilities [R, N] of N possible tokens."""
        if step:
            self.model.reorder_incremental_state(self.states, self.order)
            self.encoded = self.model.reorder_encoder_out(self.encoded, self.order)
        so_far, temperature = self.tokens[:, : step + 1], self.generator.temperature
        lprobs, weights = self.model.compute_lprobs(so_far, self.encoded, self.states, temperature)
        if weights is not None:
            if self.attention is None:
                self.attention = self.scores.new_zeros(*weights.shape, self.last + 2)
            self.attention[:, :, step + 1] = weights
        self.scores = self.scores.type_as(lprobs)
        return lprobs

    def _find_candidates(self, step: int, lprobs: Tensor) -> Candidates:
        """Select each sentence's best continuations. ``lprobs`` [R, N] is for R hypotheses and N tokens."""
        B, K, N = len(self.unused), self.beam_size, lprobs.size(1)
        lprobs, columns = self._find_best_tokens(step, lprobs)
        sums = lprobs + self.scores[:, step - 1 : step] if step else lprobs
        sums, columns = sums.view(B, K, -1), columns.view(B, -1)
        if step == 0:  # the hypotheses of a sentence are still equal
            sums = sums[:, :1]
        # H hypotheses, 1 or K. If H is 1, the limit H * N - 1 excludes padding, as in fairseq.
        _, H, n = sums.shape
        scores, places = sums.flatten(1).topk(min(2 * K, H * N - 1, H * n))
        tokens = self.encoded.find_tokens(columns.gather(1, places))
        first_rows = torch.arange(0, B * K, K, device=lprobs.device)[:, None]
        return Candidates(scores, tokens, first_rows + places // n)

    def _find_best_tokens(self, step: int, lprobs: Tensor) -> Tuple[Tensor, Tensor]:
        """Find the n best next tokens of each of R hypotheses.

        Return their log-probabilities and columns, both [R, n], where n is at most 2 K for beam size K, and 1
        if all sentences end. The log-probabilities ``lprobs`` [R, N] of N tokens are modified in place.
        """
        options = self.generator
        lprobs[:, self.pad_column].fill_(-math.inf)
        if options.unk_penalty:
            lprobs[:, self.unk_column].sub_(options.unk_penalty)
        if step >= max(self.limits):
            columns = torch.full_like(self.order, self.eos_column)[:, None]
            return remove_nan(lprobs.gather(1, columns)), columns
        ends, forced = lprobs[:, self.eos_column].clone(), None
        if self.prefix is not None and step < self.prefix.size(1):
            forced = self._force_tokens(self.prefix[:, step], lprobs)
        if step < options.min_len:
            lprobs[:, self.eos_column].fill_(-math.inf)
        if self.suppressed is not None:
            lprobs[:, self.suppressed] = -math.inf
        if options.repeat_ngram_blocker is not None:
            rows, tokens = options.repeat_ngram_blocker.find(self.tokens[:, 1 : step + 1])
            lprobs[rows, self.encoded.find_columns(tokens)] = -math.inf
        if step >= min(self.limits):  # some sentences end
            is_last = [step >= limit for limit in self.limits for _ in range(self.beam_size)]
            rows = torch.tensor(is_last, device=lprobs.device).nonzero().squeeze(1)
            lprobs[rows] = -math.inf
            lprobs[rows, self.eos_column] = ends[rows]
        values, columns = find_largest(lprobs, min(2 * self.beam_size, lprobs.size(1)))
        if forced is not None:
            is_forced, forced_values, forced_columns = forced
            values = values.masked_fill(is_forced, -math.inf)
            values[:, :1] = torch.where(is_forced, forced_values, values[:, :1])
            columns[:, :1] = torch.where(is_forced, forced_columns, columns[:, :1])
        return remove_nan(values), columns

    def _force_tokens(self, tokens: Tensor, lprobs: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """Find the hypotheses whose next token is forced by a prefix.

        ``tokens`` [B] holds the next token of each prefix, or padding after its end, and ``lprobs`` [R, N]
        the log-probabilities. Return a mask, the forced token's log-probability, and its column, all [R, 1].
        """
        tokens = tokens.repeat_interleave(self.beam_size)[:, None]
        columns = self.encoded.find_columns(tokens)
        values = lprobs.gather(1, columns)
        # If the prefix ends the sentence, all its hypotheses become the first one.
        ends = tokens.eq(self.generator.eos).squeeze(1)
        rows = torch.arange(len(tokens), device=tokens.device)
        first = (rows - rows % self.beam_size)[ends]
        for x in (self.tokens, self.scores, self.attention, values):
            if x is not None:
                x[ends] = x[first]
        return tokens.ne(self.generator.pad), values, columns

    def _find_ends(self, candidates: Candidates) -> Tensor:
        """Return a mask [B, up to 2 K] that is True at candidates that end a hypothesis."""
        ends = candidates.tokens.eq(self.generator.eos) & candidates.scores.ne(-math.inf)
        first = ends[:, : self.beam_size]
        first &= ~self.unused[:, : first.size(1)]
        return ends

    def _store_finished(self, step: int, candidates: Candidates, ends: Tensor) -> List[int]:
        """Store the hypotheses that end among the K best continuations of each sentence.

        ``ends`` is True at candidates that end a hypothesis. Return the indices of the sentences that are now
        finished, counted among the sentences still searched.
        """
        K = self.beam_size
        rows = candidates.rows[:, :K][ends[:, :K]]
        if not len(rows):
            return []
        scores = candidates.scores[:, :K][ends[:, :K]]
        source_lengths = None  # fairseq reads them for --match-source-len only
        return self.generator.finalize_hypos(
            step,
            rows,
            scores,
            self.tokens,
            self.scores,
            self.hypotheses,
            self.is_finished,
            K,
            self.attention,
            source_lengths,
            self.limits,
        )

    def _continue_with(self, step: int, candidates: Candidates, ends: Tensor, finished: List[int]) -> None:
        """Append the tokens of the K best unfinished continuations to the hypotheses, in place.

        ``candidates`` are the best continuations of each sentence, ``ends`` is True at candidates that end a
        hypothesis, and ``finished`` lists the indices of sentences to remove from the search.
        """
        K = self.beam_size
        if finished:
            left = torch.tensor([number not in finished for number in range(len(ends))], device=ends.device)
            candidates, ends = Candidates(*(x[left] for x in candidates)), ends[left]
            self.unused = self.unused[left]
            self.prefix = None if self.prefix is None else self.prefix[left]
            self.limits = [limit for number, limit in enumerate(self.limits) if number not in finished]
        ends[:, :K] |= self.unused
        # The best candidates that do not end, followed by those that do.
        n = ends.size(1)
        ranks, chosen = (torch.arange(n, device=ends.device) + n * ends).topk(K, dim=1, largest=False)
        self.unused = ranks >= n
        scores, tokens, rows = (x.gather(1, chosen).flatten() for x in candidates)
        self.order = rows
        self.tokens, self.scores = (x.index_select(0, rows) for x in (self.tokens, self.scores))
        self.tokens[:, step + 1], self.scores[:, step] = tokens, scores
        if self.attention is not None:
            past = self.attention[rows, :, : step + 2]
            self.attention = self.attention[: len(rows)]
            self.attention[:, :, : step + 2] = past


def remove_nan(lprobs: Tensor) -> Tensor:
    """Replace NaN with -inf in log-probabilities, so that such tokens are never chosen."""
    return lprobs.masked_fill(lprobs.isnan(), -math.inf)


def find_largest(x: Tensor, k: int) -> Tuple[Tensor, Tensor]:
    """Return the k largest values of each row of x [R, N], in decreasing order, and their columns.

    On a CPU, where ``topk`` is slow for long rows, only the k blocks of 128 columns with the largest maxima
    and the columns after the last whole block are searched.
    """
    R, N = x.shape
    blocks = N // _BLOCK
    if x.device.type != "cpu" or blocks < 4 * k:
        return x.topk(k)
    end = blocks * _BLOCK
    maxima = x[:, :end].unflatten(1, (blocks, _BLOCK)).amax(dim=2)
    starts = maxima.topk(k).indices * _BLOCK
    columns = (starts[:, :, None] + torch.arange(_BLOCK)).flatten(1)
    columns = torch.cat([columns, torch.arange(end, N).expand(R, -1)], dim=1)
    values, places = x.gather(1, columns).topk(k)
    return values, columns.gather(1, places)
