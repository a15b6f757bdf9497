"""``decode``: beam search with whole translation models, Luna's beside fairseq's Transformer of the same
size.
"""

import argparse
from functools import partial
from typing import Any, Dict, List

import torch

from fairseq.sequence_generator import SequenceGenerator
from luna_fairseq.benchmark.equality import relative_rms, require_equal
from luna_fairseq.benchmark.measure import Case, Job, Settings
from luna_fairseq.benchmark.models import (
    ModelTask,
    add_size_options,
    batch_cases,
    batch_of,
    translation_options,
    translation_task,
)
from luna_fairseq.benchmark.options import MODEL_DTYPES, BatchSize, add_projection_length, at_least
from luna_fairseq.benchmark.peers import Model
from luna_fairseq.errors import InputError

CHECKED_LENGTH = 9


class Decode(ModelTask):
    """``decode``."""

    name = "decode"
    help = "beam search: Luna tied and untied beside fairseq's Transformer"
    notes = """
    fairseq's SequenceGenerator and models prepared as fairseq-generate prepares them, with random weights.
    Every hypothesis has exactly T tokens, EOS included, and so has every source sentence: EOS is forbidden
    before and forced there. Before anything is timed, decoding token by token was compared with the decoder
    on whole sentences.
    """
    task = "decode"
    rate = "sentences"

    def __init__(self, args: argparse.Namespace, settings: Settings):
        super().__init__(args, settings)
        if args.beam > self.dictionary_size - 1:
            raise InputError(
                f"--beam {args.beam} needs a larger --dictionary-size than {self.dictionary_size}"
            )

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        add_size_options(parser)
        add_projection_length(parser)
        add = parser.add_argument
        lengths = [30, 250]
        add(
            "--lengths",
            type=at_least(2),
            nargs="+",
            default=lengths,
            metavar="T",
            help=f"(default: {lengths})",
        )
        add("--batch", type=at_least(1), default=1, metavar="N", help="sentences (default: 1)")
        add("--beam", type=at_least(1), default=5, metavar="N", help="hypotheses of each (default: 5)")
        add(
            "--dtype",
            choices=list(MODEL_DTYPES),
            default="float32",
            help="of the parameters (default: float32)",
        )

    def options(self, batch: BatchSize, dropout: float) -> Dict[str, Any]:
        # Positions are counted from behind the padding symbol, and the generator stops one before the last.
        return translation_options(self.sizes, max(1024, batch.tokens + 2))

    def cases(self) -> List[Case]:
        return batch_cases([BatchSize(self.args.batch, length) for length in self.args.lengths])

    def count(self, case: Case) -> int:
        return case["sentences"]

    def build(self, row: Model, case: Case) -> Any:
        model = self.make_model(row, batch_of(case)).eval()
        # The dictionary of a warm-up may be smaller than twice the beam.
        beam = min(self.args.beam, self.dictionary_size // 2)
        model.make_generation_fast_(beamable_mm_beam_size=beam, need_attn=False)
        length = case["T"] - 1  # counted without EOS
        dictionary = translation_task(self.dictionary_size).target_dictionary
        generator = SequenceGenerator(
            [model], dictionary, beam_size=beam, max_len_a=0, max_len_b=length, min_len=length
        )
        torch.manual_seed(self.settings.seed)  # the same batch for every model
        tokens = self.random_sentences(batch_of(case))
        lengths = torch.full((case["sentences"],), case["T"], device=tokens.device)
        return generator, {"net_input": {"src_tokens": tokens, "src_lengths": lengths}}

    def step(self, row: Model, built: Any, case: Case) -> Job:
        return partial(translate, *built)

    def check(self, rows: Dict[str, Model]) -> None:
        for name, row in rows.items():
            self.check_steps(name, self.make_model(row, BatchSize(2, CHECKED_LENGTH)).float().eval())

    @torch.no_grad()
    def check_steps(self, name: str, model: Any) -> None:
        """Raise InputError when decoding token by token gives other logits than the decoder on a whole
        sentence.
        """
        source, target = (self.random_sentences(BatchSize(2, CHECKED_LENGTH)) for _ in range(2))
        encoded = model.encoder(source, src_lengths=torch.full((2,), CHECKED_LENGTH, device=source.device))
        whole = model.decoder(target, encoder_out=encoded)[0]  # [B, T, V]
        state: Dict[str, Any] = {}
        steps = [
            model.decoder(target[:, : t + 1], encoder_out=encoded, incremental_state=state)[0]
            for t in range(CHECKED_LENGTH)
        ]
        error = relative_rms(torch.cat(steps, dim=1), whole)
        require_equal(name, "its logits in decoding differ from those for whole sentences", error)

    def describe(self) -> str:
        return f"{self.preset}: {super().describe()}, beam {self.args.beam}"


def translate(generator: SequenceGenerator, sample: Dict[str, Any]) -> None:
    """Generate. Raises InputError when a hypothesis is not as long as the source sentence."""
    expected = sample["net_input"]["src_tokens"].size(1)
    for hypotheses in generator.generate([], sample):
        for hypothesis in hypotheses:
            if len(hypothesis["tokens"]) != expected:
                raise InputError(f"a hypothesis has {len(hypothesis['tokens'])} tokens instead of {expected}")
