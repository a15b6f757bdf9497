"""Benchmark ``decode``: beam search with Luna and with fairseq's Transformer."""

from dataclasses import replace
from functools import partial
from typing import Any, Dict, List

import torch

from fairseq.sequence_generator import SequenceGenerator
from luna_fairseq.benchmark.models import ModelTask, ModelVariant
from luna_fairseq.benchmark.task import BatchSize, Case, Job, number_options, require_equal
from luna_fairseq.errors import InputError
from luna_fairseq.models.bfloat16_linear import use_bfloat16
from luna_fairseq.models.int8 import quantise

CHECKED_LENGTH = 9


class Decode(ModelTask):
    """Benchmark "decode": beam search with translation models on random sentences."""

    notes = """Measure beam search with Luna beside fairseq's Transformer.

    The search of fairseq-generate translates random sentences with random weights: fairseq's
    SequenceGenerator for its own models, that of this package for ours. The models are prepared as in
    fairseq-generate. Every source sentence and every hypothesis has exactly T tokens, including the end
    token.

    Rows: luna-16-tied is Luna with l = 16 and tied keys and values, luna-16-untied has separate keys and
    values. transformer is fairseq's Transformer of the same size. Rows that end in -int8 or -bf16 decode as
    with --int8 or --bf16.

    Before anything is timed, the logits of decoding token by token are compared with those of whole
    sentences."""
    example = "--preset small --lengths 30"
    task = "decode"
    rate = "sentences"
    options = {
        **ModelTask.options,
        **number_options(lengths=[30, 250], batch=1, beam=5, projection_length=[16]),
    }

    def cases(self) -> List[Case]:
        if self.args.beam > self.dictionary_size - 1:
            raise InputError(
                f"--beam {self.args.beam} needs a larger --dictionary-size than {self.dictionary_size}"
            )
        if min(self.args.lengths) < 2:
            raise InputError("--lengths 1 leaves no room for a token before EOS. Use 2 or more")
        return [{"sentences": self.args.batch, "T": length} for length in self.args.lengths]

    def prepare_job(self, variant: ModelVariant, case: Case) -> Job:
        return self.prepare_search(self.prepare_model(variant, case["T"]), BatchSize(**case))

    def prepare_model(self, variant: ModelVariant, T: int) -> Any:
        """Build a model for sentences of T tokens, and prepare it for generation as fairseq-generate does."""
        # torch's counter of operations adds hooks to tensors that require gradients, and fails without them.
        model = self.make_model(variant, T).eval().requires_grad_(False)
        model.make_generation_fast_(beamable_mm_beam_size=self.args.beam, need_attn=False)
        return model

    def prepare_search(self, model: Any, batch: BatchSize) -> Job:
        """Return a function that translates a batch of random sentences by beam search with ``model``.

        All models get the same sentences. ``batch`` sets their number and the length of source and target.
        """
        length = batch.T - 1  # counted without EOS
        options = {"beam_size": self.args.beam, "max_len_a": 0, "max_len_b": length, "min_len": length}
        choose = getattr(model, "choose_generator", lambda args: SequenceGenerator)
        generator = choose(self.args)([model], self.dictionary(), **options)
        torch.manual_seed(self.args.seed)
        tokens = self.random_sentences(batch)
        lengths = torch.full((batch.sentences,), batch.T, device=tokens.device)
        return partial(translate, generator, {"net_input": {"src_tokens": tokens, "src_lengths": lengths}})

    @torch.no_grad()
    def check(self, variant: ModelVariant) -> float:
        """Return the error of the logits in step-by-step decoding, divided by the tolerance.

        The error is the relative RMS of the difference from the logits of a full forward pass.
        """
        T = CHECKED_LENGTH
        # Models are compared before their weights are rounded, because rounding errors move some inputs to
        # another 8-bit level.
        if variant.change in (quantise, use_bfloat16):
            variant = replace(variant, change=None)
        model: Any = self.make_model(variant, T).float().eval()
        source, target = (self.random_sentences(BatchSize(2, T)) for _ in range(2))
        encoded = model.encoder(source, src_lengths=torch.full((2,), T, device=source.device))
        decode = partial(model.decoder, encoder_out=encoded)
        state: Dict[str, Any] = {}
        steps = [decode(target[:, : t + 1], incremental_state=state)[0] for t in range(T)]
        what = "its logits in decoding differ from those for whole sentences"
        return require_equal(what, torch.cat(steps, dim=1), decode(target)[0])  # [B, T, V]


def translate(generator: SequenceGenerator, sample: Dict[str, Any]) -> None:
    """Translate a batch and discard the translations, so that the time can be measured.

    Raise InputError if the length of a translation differs from the length of its source.
    """
    expected = sample["net_input"]["src_tokens"].size(1)
    for hypotheses in generator.generate([], sample):
        for hypothesis in hypotheses:
            if len(hypothesis["tokens"]) != expected:
                raise InputError(f"a hypothesis has {len(hypothesis['tokens'])} tokens instead of {expected}")
