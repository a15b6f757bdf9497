"""``luna-export-onnx``: a trained model as ONNX, for onnxruntime.

FOLDER then holds the tokenizer and the graphs. A masked language model or a classifier is model.onnx, which
maps input_ids to logits. A translation model is encoder.onnx and decoder.onnx. encoder.onnx takes input_ids
[batch, length], padded on either side, and returns the initial state of decoding. decoder.onnx takes one
token of each sentence [batch, 1] and the state, and returns logits [batch, vocabulary] and the changed part
of the state as next_NAME. The first token is the end of a sentence. A row whose token is padding keeps its
state, so prompts may be padded on either side. A causal language model is decoder.onnx and start.npz, the
initial state of one text, to be repeated for a batch. The state of a Luna decoder is constant in size. The
graphs are compared with the model on other batches and lengths. Needs the extra "onnx": pip install
"luna_fairseq[onnx]".
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import torch
from torch import Tensor

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError, MissingRequirementError
from luna_fairseq.files.writing import replacing_folder
from luna_fairseq.huggingface.export import converted, export_parser, write_tokenizer
from luna_fairseq.modules.luna_decoder import LunaDecoder
from luna_fairseq.modules.packed_embedding import PackedEmbedding

PROGRAM = "luna-export-onnx"
LARGEST_DIFFERENCE = 1e-4  # relative to the largest number; larger is a fault of the export
BATCHES = ((3, 11), (1, 5), (4, 23))  # at export, and those with which it is compared


def build_parser() -> CommandParser:
    """The command's options."""
    return export_parser(PROGRAM, __doc__)


def _export(args: argparse.Namespace) -> None:
    for exporter in ("torch.onnx", "onnxscript"):  # which warn of what they leave out, such as torchvision
        logging.getLogger(exporter).setLevel(logging.ERROR)
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingRequirementError(
            "the export needs onnx, onnxscript, onnxruntime (CPython 3.11 or later): "
            'pip install "luna_fairseq[onnx]"'
        ) from error
    _, _, model, tokenizer = converted(args.path, args.data, args.folder, args.head, args.ema)
    with replacing_folder(args.folder) as temporary:
        write_onnx(model, temporary)
        if tokenizer is not None:
            write_tokenizer(tokenizer, temporary)
    print(f"{args.folder}: {', '.join(sorted(path.name for path in args.folder.glob('*.onnx')))}")


def write_onnx(model: Any, folder: Path) -> None:
    """Write the graphs of an exported ``model`` into ``folder``, and compare their logits with the model's.

    Raises:
        InputError: the model or an operation cannot be exported, or the graphs have other logits
    """
    from luna_fairseq.huggingface.decoder import Generates
    from luna_fairseq.huggingface.onnx_parts import Whole, source_tokens
    from luna_fairseq.huggingface.onnx_runs import batches_to_compare, graph_logits, model_logits

    if getattr(model.config, "reads_pixels", False) or getattr(model.config, "pair_combination", ""):
        raise InputError(
            "classifiers of pixels and of pairs cannot be exported to ONNX; those of one text can"
        )
    if getattr(model.config, "separators", None):
        raise InputError("a model with --sentence-diagonal cannot be exported to ONNX: it counts sentences")
    # The forms of a graph differ from the model's own, so the logits to compare with come first.
    with torch.no_grad():
        expected = [(batch, model_logits(model, batch)) for batch in batches_to_compare(model.config)]
    for module in model.modules():
        if isinstance(module, PackedEmbedding):
            module.has_fixed_shape = True
        elif isinstance(module, LunaDecoder):
            module.attentions.for_export = True
    tokens = [(source_tokens(model, *size),) for size in BATCHES]
    if not isinstance(model, Generates):
        _write(Whole(model), folder / "model.onnx", tokens)
    else:
        _write_decoder(model, folder, tokens)
    for batch, logits in expected:
        check_close("the folder", "logits", logits, graph_logits(model.config, folder, batch))


def _write_decoder(model: Any, folder: Path, tokens: List[Tuple[Tensor, ...]]) -> None:
    """Write the graph of the initial state, or the state itself, and the graph of a step.

    Args:
        model: a model with a decoder
        folder: where to write
        tokens: sources of several shapes, the first for the export and all for the comparison
    """
    from luna_fairseq.huggingface.onnx_parts import Start, Step

    start = Start(model)
    with torch.no_grad():
        states = [start(*each) for each in tokens]
    if model.config.is_encoder_decoder:
        _write(start, folder / "encoder.onnx", tokens)
    else:
        one = [state[:1].numpy() for state in states[0]]
        np.savez(str(folder / "start.npz"), **dict(zip(start.output_names, one)))
    first = model.config.eos_token_id  # with which texts begin
    steps = [(torch.full((rows, 1), first), *state) for (rows, _), state in zip(BATCHES, states)]
    _write(Step(model, start), folder / "decoder.onnx", steps)


def _write(part: Any, path: Path, examples: List[Tuple[Tensor, ...]]) -> None:
    """Export ``part`` with the first of the ``examples``, and compare its outputs for all of them."""
    first, *_, last = examples
    shapes = tuple(
        {dim: torch.export.Dim.AUTO for dim in range(x.dim()) if x.size(dim) != y.size(dim)}
        for x, y in zip(first, last)
    )
    names = {"input_names": part.input_names, "output_names": part.output_names}
    try:
        program = torch.export.export(part, first, dynamic_shapes=(shapes,), strict=False)
        torch.onnx.export(program, first, str(path), dynamo=True, verbose=False, **names)
    except Exception as error:  # whatever an exporter that meets a new operation may raise
        lines = str(error).strip().split("\n")
        reason = next((line for line in lines if "No ONNX function" in line), lines[0])
        raise InputError(f"ONNX cannot express this model: {type(error).__name__}: {reason}") from error
    _compare(part, path, examples)


def _compare(part: Any, path: Path, examples: List[Tuple[Tensor, ...]]) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path))
    inputs = [given.name for given in session.get_inputs()]
    for example in examples:
        given = {name: x.numpy() for name, x in zip(part.input_names, example) if name in inputs}
        with torch.no_grad():
            expected = part(*example)
        for name, value, found in zip(part.output_names, expected, session.run(None, given)):
            check_close(path.name, name, value, torch.from_numpy(found))


def check_close(graph: str, name: str, expected: Tensor, found: Tensor) -> None:
    """Raise InputError unless the tensor ``name`` of a ``graph`` is the model's up to rounding."""
    difference = (found.float() - expected.float()).abs().max()
    if not difference <= LARGEST_DIFFERENCE * expected.float().abs().max().clamp(min=1):
        raise InputError(
            f"{graph} gives other {name} than the model: they differ by {difference:.1e}. Please report this."
        )


main = console_script(PROGRAM, build_parser, lambda args: _export(args), place="folder", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
