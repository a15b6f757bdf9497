"""Command ``python -m luna_fairseq.translation.pack_coverage``: measure how Luna attends to its source.

Luna's decoder reads the source through the packed sequence P: in pack attention, each row of P attends to all
source positions. The command prints two numbers for each decoder layer of a trained model, over all sentences
of a split.

"maximum of a row" is the share of source positions at which some row of P has its largest weight, averaged
over heads. "largest weight" is the largest weight that a source position gets from any row and head, averaged
over positions. EOS counts as a source position. Padding and masked rows of P do not count.

If P is anchored, the command also prints the learned strength of each head's anchor and the gates of the
look-ups.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
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
from luna_fairseq.modules import LunaAttention
from luna_fairseq.modules.batch import NO_PADDING, Source
from luna_fairseq.progress import progress

PROGRAM = "python -m luna_fairseq.translation.pack_coverage"


def build_parser() -> CommandParser:
    """Build the command-line parser."""
    parser = CommandParser(PROGRAM, __doc__, f"{PROGRAM} data --path checkpoints/averaged.pt")
    parser.path("data", "folder of the data that the model was trained on", "DATA")
    parser.path("--path", "checkpoint of a trained model", "CHECKPOINT", required=True)
    split = "split to read (default: %(default)s)"
    parser.add_argument("--valid-subset", default="valid", metavar="NAME", help=split)
    parser.count("--batch-size", 64, "number of sentences in a batch")
    return parser


def _report(args: argparse.Namespace) -> None:
    """Print the cross-attention statistics of each decoder layer, and the learned position biases."""
    model, task = load_model(args.path, args.data)
    attentions = cross_attentions(model) if isinstance(model, LunaModel) else []
    # An ablation without unpack attention has P in some layers, but X does not read the source through it.
    if not attentions or any(isinstance(attention, SoftmaxCrossAttention) for attention in attentions):
        raise InputError(f"{args.path} does not read its source through P. Give a Luna translation model.")
    number, batches = load_split(task, args.valid_subset, args.batch_size)
    layers = measure_coverage(model, batches)
    print(f"{args.valid_subset}: {number:,} sentences, {layers[0].positions:,} source positions with EOS")
    print("decoder layer  maximum of a row  largest weight")
    for depth, layer in enumerate(layers, start=1):
        print(f"{depth:13d}  {layer.covered_share:16.2f}  {layer.mean_largest_weight:14.2f}")
    for name, values in learned_anchors(model):
        print(f"{name}: {' '.join(f'{value:.2f}' for value in values)}")


def load_model(path: Path, data: Path) -> Tuple[Any, Any]:
    """Load a checkpoint's model for inference, on a GPU if available. Return (model, fairseq task).

    ``data`` is the folder with the dictionaries.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist. Give --path a checkpoint that fairseq-train wrote.")
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], {"data": str(data)})
    model = models[0].eval()
    return (model.cuda() if torch.cuda.is_available() else model), task


def load_split(task: Any, split: str, batch_size: int) -> Tuple[int, Iterable[Any]]:
    """Load a split of a fairseq task. Return the number of sentences, and an iterable over the batches."""
    task.load_dataset(split)
    dataset = task.dataset(split)
    if not len(dataset):
        raise InputError(f"there are no sentences in {split}. Give another --valid-subset.")
    batches = task.get_batch_iterator(dataset, max_sentences=batch_size)
    return len(dataset), progress(batches.next_epoch_itr(shuffle=False), split, "batches")


def cross_attentions(model: LunaModel) -> List[LunaAttention]:
    """Return the cross-attention modules of the decoder layers, from the first layer to the last."""
    return [layer.encoder_attn for layer in model.decoder.layers]


def learned_anchors(model: LunaModel) -> List[Tuple[str, List[float]]]:
    """Return (name, one value per head) for each learned position parameter of an anchored Luna model.

    The attention of such a model favours source tokens near an expected position. The parameters are the
    strengths of this bias, ratios of source to target length, and logit biases of directly attended tokens.
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
    """Statistics of a decoder layer's pack attention, which show how much of the source the layer reads.

    In pack attention, each row of the packed sequence P attends to all source positions, including
    end-of-sentence symbols. :meth:`add` accumulates the attention weights of several batches.
    """

    def __init__(self) -> None:
        self.positions = 0
        self._covered = self._largest = 0.0

    @property
    def covered_share(self) -> float:
        """Fraction of source positions at which some row of P has its largest weight, averaged over heads."""
        return self._covered / self.positions

    @property
    def mean_largest_weight(self) -> float:
        """Largest weight of a source position over rows and heads, averaged over positions."""
        return self._largest / self.positions

    def add(self, weights: Tensor, padding_mask: Optional[Tensor], packed_mask: Optional[Tensor]) -> None:
        """Update the statistics with the pack attention weights [B, H, L, S] of a batch.

        The batch has B sentences, H heads, L rows of P and S source positions. ``padding_mask`` [B, S] and
        ``packed_mask`` [B, L] are True at masked source positions and masked rows of P.
        """
        batch, heads, _, length = weights.shape
        used = weights.new_ones(weights.shape[:3])
        if packed_mask is not None:
            used = used.masked_fill(packed_mask.unsqueeze(1), 0)
        rows_at_position = weights.new_zeros(batch, heads, length).scatter_add(2, weights.argmax(-1), used)
        self._covered += rows_at_position.gt(0).sum().item() / heads
        self._largest += (weights * used.unsqueeze(-1)).amax(dim=(1, 2)).sum().item()
        self.positions += batch * length - (0 if padding_mask is None else int(padding_mask.sum()))


def measure_coverage(model: LunaModel, batches: Iterable[Any]) -> List[Coverage]:
    """Run a model on fairseq batches, and return the coverage statistics of each decoder layer."""
    attentions = cross_attentions(model)
    layers = [Coverage() for _ in attentions]
    for attention, layer in zip(attentions, layers):
        attention.watcher = partial(_record_weights, layer)
    device = next(model.parameters()).device
    with torch.no_grad():
        for batch in batches:
            batch = utils.move_to_cuda(batch, device) if device.type == "cuda" else batch
            model(**batch["net_input"])
    for attention in attentions:
        attention.watcher = None
    return layers


def _record_weights(
    layer: Coverage,
    attention: LunaAttention,
    packed: Optional[Tensor] = None,
    context: Optional[Tensor] = None,
    source: Source = NO_PADDING,
    geometry: Any = None,
    query: Optional[Tensor] = None,
) -> None:
    """Recompute the pack attention weights of a cross-attention call, and add them to ``layer``.

    The module calls this function as its ``watcher`` callback. Calls without ``packed`` are ignored.
    """
    if packed is not None and context is not None:
        _, weights = attention.attend_to_context(packed, context, source, geometry, need_weights=True)
        layer.add(weights, source.padding_mask, source.packed_padding_mask)


main = console_script(PROGRAM, build_parser, _report, path_argument="data", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
