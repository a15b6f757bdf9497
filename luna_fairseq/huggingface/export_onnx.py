"""Command ``luna-export-onnx``: export a trained model to ONNX graphs for onnxruntime.

FOLDER then holds the graphs and the tokenizer. Which graphs it holds depends on the model:

- Masked language model or classifier: model.onnx maps input_ids [batch, length] to logits. labels.json
  names the classes of a classifier in the order of its logits.
- Translation model: encoder.onnx maps input_ids [batch, length] of the source to the memory, what the decoder
  reads of the source. decoder.onnx computes one decoding step.
- Causal language model: decoder.onnx computes one decoding step.

A decoding step reads one token of each sentence [batch, 1], the memory, and the state. The state consists of
the inputs state_NAME. It begins with zeros, and its size does not depend on the length of the text. The step
returns logits [batch, vocabulary] and next_state_NAME, the state for the next step. The first token is the
end-of-sentence token, or <s> for a language model that was trained with --add-bos-token. A padding token
leaves the state of its sentence unchanged, so sources and prompts may be padded on either side.

Before FOLDER appears, the output of the graphs is compared with the output of the model for several batch
sizes and lengths. The command needs the extra packages that pip install "luna_fairseq[onnx]" installs.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import sys
from pathlib import Path
from typing import Any, List, Tuple

import torch
from torch import Tensor

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError, MissingRequirementError
from luna_fairseq.files.writing import replacing_folder, write_text
from luna_fairseq.huggingface.export import convert_checkpoint, export_parser, write_tokenizer

PROGRAM = "luna-export-onnx"
EXAMPLE = "luna-export-onnx onnx --path checkpoints/checkpoint_best.pt --data data-bin"
# Maximum difference relative to the largest value. A larger difference indicates a defect in the export.
LARGEST_DIFFERENCE = 1e-4


def build_parser() -> CommandParser:
    """Build the command-line parser of luna-export-onnx."""
    return export_parser(PROGRAM, __doc__, EXAMPLE)


def _export(args: argparse.Namespace) -> None:
    """Run the command: write the ONNX graphs and the tokenizer, and print the file names."""
    # The exporters warn about missing optional packages, such as torchvision.
    for exporter in ("torch.onnx", "onnxscript"):
        logging.getLogger(exporter).setLevel(logging.ERROR)
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingRequirementError(
            "The export needs onnx, onnxscript, onnxruntime and CPython 3.11 or later. "
            'Run pip install "luna_fairseq[onnx]"'
        ) from error
    converted = convert_checkpoint(args.path, args.data, args.folder, args.head, args.ema)
    with replacing_folder(args.folder) as temporary:
        write_onnx(converted.model, temporary)
        if converted.tokenizer is not None:
            write_tokenizer(converted.tokenizer, temporary)
        if converted.model.config.problem_type == "single_label_classification":
            labels = list(converted.model.config.id2label.values())
            write_text(temporary / "labels.json", json.dumps(labels) + "\n")
    print(f"{args.folder}: {', '.join(sorted(path.name for path in args.folder.glob('*.onnx')))}")


def write_onnx(model: Any, folder: Path) -> None:
    """Write the ONNX graphs of a model to a folder, and compare their logits with those of the model.

    Raises InputError if ONNX cannot represent the model, or if a graph computes different logits.
    """
    from luna_fairseq.huggingface.decoder import CachedGeneration
    from luna_fairseq.huggingface.onnx_parts import WholeModel, random_source
    from luna_fairseq.huggingface.onnx_runs import (
        batches_to_compare,
        compute_graph_logits,
        compute_model_logits,
        example_sizes,
    )

    if getattr(model.config, "reads_pixels", False) or getattr(model.config, "pair_combination", ""):
        raise InputError(
            "Classifiers of images and of pairs cannot be exported to ONNX. Use luna-export-huggingface."
        )
    if getattr(model.config, "separators", None):
        raise InputError(
            "A model with --sentence-diagonal cannot be exported to ONNX. Use luna-export-huggingface."
        )
    with torch.no_grad():
        expected = [(batch, compute_model_logits(model, batch)) for batch in batches_to_compare(model.config)]
    model = build_for_export(model)
    tokens = [(random_source(model, *size),) for size in example_sizes(model.config)]
    if not isinstance(model, CachedGeneration):
        _write_graph(WholeModel(model), folder / "model.onnx", tokens)
    else:
        _write_decoder(model, folder, tokens)
    for batch, logits in expected:
        actual = compute_graph_logits(model.config, folder, batch)
        check_close("The exported folder", "logits", logits, actual)


def build_for_export(model: Any) -> Any:
    """Return a traceable copy of a model, whose shapes and operations do not depend on sentence lengths."""
    config = copy.deepcopy(model.config)
    config.fixed_shapes = True
    exportable = type(model)(config).eval()
    exportable.load_state_dict(model.state_dict())
    return exportable


def _write_decoder(model: Any, folder: Path, tokens: List[Tuple[Tensor, ...]]) -> None:
    """Write decoder.onnx, which computes a decoding step, and encoder.onnx if the model has an encoder.

    ``tokens`` holds a 1-tuple of random token ids [batch size, length] for each batch with which the graphs
    are traced or checked.
    """
    from luna_fairseq.huggingface.onnx_parts import DecodingStep, ReadSource

    memories: List[Tuple[Tensor, ...]] = [()] * len(tokens)
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            read = ReadSource(model)
            memory, memories = read.example, [read(*ids) for ids in tokens]
            _write_graph(read, folder / "encoder.onnx", tokens)
        else:
            memory = model.luna.read()
    step = DecodingStep(model, memory)
    start_token = model.config.eos_token_id
    steps = [
        (torch.full((len(ids), 1), start_token), *tensors, *step.first_state(len(ids)))
        for (ids,), tensors in zip(tokens, memories)
    ]
    _write_graph(step, folder / "decoder.onnx", steps)


def _write_graph(module: Any, path: Path, examples: List[Tuple[Tensor, ...]]) -> None:
    """Export a module to an ONNX graph by tracing the first example, and check the graph on all examples.

    A dimension is dynamic if the first and the last example have different sizes in this dimension.
    """
    first, *_, last = examples
    shapes = tuple(
        {dim: torch.export.Dim.AUTO for dim in range(x.dim()) if x.size(dim) != y.size(dim)}
        for x, y in zip(first, last)
    )
    names = {"input_names": module.input_names, "output_names": module.output_names}
    try:
        program = torch.export.export(module, first, dynamic_shapes=(shapes,), strict=False)
        torch.onnx.export(program, first, str(path), dynamo=True, verbose=False, **names)
    except Exception as error:  # The exporters raise errors of many types for unknown operations.
        lines = str(error).strip().split("\n")
        reason = next((line for line in lines if "No ONNX function" in line), lines[0])
        raise InputError(f"ONNX cannot express this model: {type(error).__name__}: {reason}") from error
    _compare_graph(module, path, examples)


def _compare_graph(module: Any, path: Path, examples: List[Tuple[Tensor, ...]]) -> None:
    """Raise InputError if an ONNX graph and its PyTorch module differ in their outputs for an example."""
    from luna_fairseq.huggingface.onnx_runs import Graph

    graph = Graph(path)
    for example in examples:
        with torch.no_grad():
            expected = module(*example)
        outputs = graph({name: x.numpy() for name, x in zip(module.input_names, example)})
        for name, value in zip(module.output_names, expected):
            check_close(path.name, name, value, torch.from_numpy(outputs[name]))


def check_close(graph: str, name: str, expected: Tensor, actual: Tensor) -> None:
    """Raise InputError if an ONNX output differs from the model's output by more than rounding error.

    ``graph`` and ``name`` identify the output in the message.
    """
    difference = (actual.float() - expected.float()).abs().max()
    if not difference <= LARGEST_DIFFERENCE * expected.float().abs().max().clamp(min=1):
        raise InputError(
            f"{graph} differs from the model in {name} by {difference:.1e}. Please report this defect."
        )


main = console_script(PROGRAM, build_parser, _export, path_argument="folder", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
