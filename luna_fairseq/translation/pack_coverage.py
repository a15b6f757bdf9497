"""How much of the source the rows of P cover: ``python -m luna_fairseq.translation.pack_coverage DATA --path
CHECKPOINT``.

For each decoder layer of a trained Luna translation model, over all sentences of a split: the share of source
positions at which a row of P has the maximum of its pack weights, as a mean over the heads; and the largest
pack weight that any row of any head gives a source position, as a mean over the positions. EOS is a source
position, padding is none, and rows of P that a short sentence leaves out are not counted. With anchored P it
also prints how strongly each head is drawn to its places, gamma, and what the gates of a look-up add.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any, Iterable, List, Optional, Tuple

import torch
from torch import Tensor

import luna_fairseq.models  # noqa: F401  (registers the models that a checkpoint may name)
from fairseq import checkpoint_utils, utils
from luna_fairseq.anchored.softmax_cross import SoftmaxCrossAttention
from luna_fairseq.anchored.strengths import DiagonalPrior, LearnedStrength, LookupGate
from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.models import LunaModel
from luna_fairseq.modules import LunaAttention, Source
from luna_fairseq.progress import progress

PROGRAM = "python -m luna_fairseq.translation.pack_coverage"


def build_parser() -> CommandParser:
    """Build the parser of the command line."""
    parser = CommandParser(PROGRAM, __doc__)
    parser.path("data", "folder of the data that fairseq-train had", "DATA")
    parser.path("--path", "a trained model", "CHECKPOINT", required=True)
    split = "split to read (default: %(default)s)"
    parser.add_argument("--valid-subset", default="valid", metavar="NAME", help=split)
    parser.count("--batch-size", 64, "number of sentences at a time")
    return parser


def _report(args: argparse.Namespace) -> None:
    model, task = load_model(args)
    attentions = cross_attentions(model) if isinstance(model, LunaModel) else []
    # An ablation without unpack attention has P in some layers, but X does not read the source through it.
    if not attentions or any(isinstance(attention, SoftmaxCrossAttention) for attention in attentions):
        raise InputError(
            f"{args.path} is no model that reads its source through P: give a Luna translation model"
        )
    number, batches = load_split(args, task)
    layers = measure_coverage(model, batches)
    print(f"{args.valid_subset}: {number:,} sentences, {layers[0].positions:,} source positions with EOS")
    print("decoder layer  maximum of a row  largest weight")
    for depth, layer in enumerate(layers, start=1):
        print(f"{depth:13d}  {layer.maxima:16.2f}  {layer.largest:14.2f}")
    for name, values in learned_anchors(model):
        print(f"{name}: {' '.join(f'{value:.2f}' for value in values)}")


def load_model(args: argparse.Namespace) -> Tuple[Any, Any]:
    """Return the model, in evaluation mode and on the GPU if there is one, and its task.

    Raises:
        InputError: the checkpoint does not exist
    """
    if not args.path.is_file():
        raise InputError(f"{args.path} does not exist: give --path a checkpoint that fairseq-train wrote")
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(args.path)], {"data": str(args.data)}
    )
    model = models[0].eval()
    return (model.cuda() if torch.cuda.is_available() else model), task


def load_split(args: argparse.Namespace, task: Any) -> Tuple[int, Iterable[Any]]:
    """Return the number of sentences in the split, and its batches.

    Raises:
        InputError: the split is empty
    """
    task.load_dataset(args.valid_subset)
    dataset = task.dataset(args.valid_subset)
    if not len(dataset):
        raise InputError(f"{args.data} has no sentences in {args.valid_subset}")
    batches = task.get_batch_iterator(dataset, max_sentences=args.batch_size)
    return len(dataset), progress(batches.next_epoch_itr(shuffle=False), args.valid_subset, "batches")


def cross_attentions(model: LunaModel) -> List[LunaAttention]:
    """Return the cross-attention of each decoder layer."""
    return [layer.encoder_attn for layer in model.decoder.layers]


def learned_anchors(model: LunaModel) -> List[Tuple[str, List[float]]]:
    """Return the strength of every anchor and the value of every look-up gate, for each head.

    Returns:
        list of (name of the module, values of its heads)
    """
    found = []
    for name, module in model.named_modules():
        if isinstance(module, LearnedStrength):
            found.append((name, module.strength().tolist()))
            if isinstance(module, DiagonalPrior):
                found.append((f"{name}.ratio", module.ratio().tolist()))
        elif isinstance(module, LookupGate):
            found.append((name, module().tolist()))
    return found


class Coverage:
    """Accumulate how much of the source the rows of P of one layer cover.

    Attributes:
        positions: number of source positions so far, EOS included
    """

    def __init__(self) -> None:
        self.positions = 0
        self._maxima = self._largest = 0.0

    @property
    def maxima(self) -> float:
        """Share of the positions at which a row of P has its largest weight, averaged over heads."""
        return self._maxima / self.positions

    @property
    def largest(self) -> float:
        """Largest weight that any row of any head gives to a position, averaged over positions."""
        return self._largest / self.positions

    def add(self, weights: Tensor, padding_mask: Optional[Tensor], packed_mask: Optional[Tensor]) -> None:
        """Add the sentences of a batch.

        Args:
            weights: [B, H, L, S] pack weights, 0 at padding
            padding_mask: [B, S], True at padding, or None
            packed_mask: [B, L], True at masked rows of P, or None
        """
        batch, heads, _, length = weights.shape
        used = weights.new_ones(weights.shape[:3])
        if packed_mask is not None:
            used = used.masked_fill(packed_mask.unsqueeze(1), 0)
        rows_at_position = weights.new_zeros(batch, heads, length).scatter_add(2, weights.argmax(-1), used)
        self._maxima += rows_at_position.gt(0).sum().item() / heads
        self._largest += (weights * used.unsqueeze(-1)).amax(dim=(1, 2)).sum().item()
        self.positions += batch * length - (0 if padding_mask is None else int(padding_mask.sum()))


def measure_coverage(model: LunaModel, batches: Iterable[Any]) -> List[Coverage]:
    """Measure the coverage of each decoder layer.

    Args:
        model: translation model in evaluation mode
        batches: fairseq's batches of a translation task
    """
    attentions = cross_attentions(model)
    layers = [Coverage() for _ in attentions]
    for attention, layer in zip(attentions, layers):
        attention.watcher = partial(_add, layer)
    device = next(model.parameters()).device
    with torch.no_grad():
        for batch in batches:
            batch = utils.move_to_cuda(batch, device) if device.type == "cuda" else batch
            model(**batch["net_input"])
    for attention in attentions:
        attention.watcher = None
    return layers


def _add(
    layer: Coverage,
    attention: LunaAttention,
    query: Tensor,
    packed: Tensor,
    context: Tensor,
    source: Source,
    geometry: Any,
) -> None:
    """Count what one call of ``attention`` covers; arguments as of its ``watcher``."""
    _, weights = attention.attend_to_context(packed, context, source, geometry, need_weights=True)
    layer.add(weights, source.padding_mask, source.packed_padding_mask)


main = console_script(PROGRAM, build_parser, _report, place="data", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
