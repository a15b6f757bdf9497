"""``lra``: cost of Long Range Arena's Text task at the lengths of the paper's Table 2."""

import argparse
from dataclasses import replace

from luna_fairseq.benchmark import train
from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.benchmark.options import BatchSize
from luna_fairseq.benchmark.report import Section

HELP = "training step of Long Range Arena's byte classifiers, Luna and Transformer, as in the paper's Table 2"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the sub-command: those of ``train`` that apply."""
    train.add_run_options(
        parser,
        batches=[BatchSize(1, 1024 * thousands) for thousands in (1, 2, 3, 4)],
        projection_lengths=(16, 128, 256),
    )
    parser.set_defaults(task="classify", preset=None, dictionary_size=None)


def run(args: argparse.Namespace, settings: Settings) -> Section:
    """See :func:`luna_fairseq.benchmark.train.run`."""
    return replace(train.run(args, settings), name="lra")
