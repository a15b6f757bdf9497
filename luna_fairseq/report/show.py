"""Command ``luna-show``, which writes an HTML page with the attention maps of a trained model.

Show which words a trained model attends to, in every layer, on one interactive HTML page.

For each layer and head, the page draws three maps. The pack map shows which tokens each vector of the packed
sequence P reads. The unpack map shows which vectors of P each token reads. The third map shows which tokens
each token reads as a result. A table lists the entropy and the coverage of every head. For a translation
model, the page also shows the translation and its alignment.

CHECKPOINT is a translation model, a masked or causal language model, or a text classifier. Models of
luna_fairseq and of fairseq are supported. The files of the encoding (sentencepiece.bpe.model, bpe.codes, or
encoder.json and vocab.bpe) are searched beside the checkpoint and in the data folder. Without them, the text
is split at spaces. The page opens from disk and makes no network requests.
"""

from __future__ import annotations

import argparse
import base64
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Sequence

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.files.writing import check_separate
from luna_fairseq.progress import progress
from luna_fairseq.report.page import Page, build_page
from luna_fairseq.text.bitext import read_lines

if TYPE_CHECKING:  # torch and fairseq take seconds to import, and --help does not need them
    from torch import Tensor

    from luna_fairseq.report.attention import AttentionMaps

PROGRAM = "luna-show"
STYLES = ("page.css", "show.css")
SCRIPTS = ("page.js", "heatmap.js", "show.js")
MAX_TEXTS = 50
LEVELS = 255  # each weight is stored in one byte, as a fraction of the largest weight of its head


def build_parser() -> CommandParser:
    """Build the command-line parser of luna-show."""
    example = f'example: {PROGRAM} checkpoint_best.pt --text "Ein Mann rennt."'
    parser = CommandParser(PROGRAM, __doc__, epilog=example)
    parser.path("checkpoint", "checkpoint of a trained model", "CHECKPOINT")
    texts = parser.add_mutually_exclusive_group(required=True)
    texts.add_argument(
        "--text", action="append", metavar="TEXT", help="text to show; repeat the option for several texts"
    )
    texts.add_argument(
        "--input",
        type=Path,
        metavar="FILE",
        help=f"file of texts to show, one on each line, at most {MAX_TEXTS}",
    )
    parser.add_argument(
        "--target",
        metavar="TEXT",
        help="translation to show, for a single --text (default: the model's own translation)",
    )
    parser.path("--data", "folder of the dictionaries (default: the folder used for training)", "DIR")
    parser.count("--beam", 5, "beam size")
    parser.path("--out", "file to write (default: %(default)s)", default=Path("attention.html"))
    return parser


def _show(args: argparse.Namespace) -> None:
    """Read the texts, compute their attention maps, and write the HTML page."""
    check_separate(args.out, "--out", filter(None, [args.checkpoint, args.input]))
    texts = args.text or [line for line in read_lines(args.input) if line.strip()]
    if not 0 < len(texts) <= MAX_TEXTS:
        raise InputError(f"Expected 1 to {MAX_TEXTS} texts, got {len(texts)}. Use --text or --input.")
    if args.target is not None and len(texts) > 1:
        raise InputError("--target is the translation of one text. Give a single --text with --target.")
    from luna_fairseq.report.attention import attention_maps
    from luna_fairseq.report.loading import load

    hub = load(args.checkpoint, args.data)
    maps = [
        attention_maps(hub, text, args.target, args.beam) for text in progress(texts, "attention", "texts")
    ]
    page = attention_page(maps, f"Attention of {args.checkpoint.name}", str(args.checkpoint))
    page.write(args.out)
    for text_maps in maps:
        print(*(f"{name}: {text}" for name, text in text_maps.texts.items()), sep="\n")
    print(f"wrote {args.out} ({page.size})")


def attention_page(maps: Sequence[AttentionMaps], title: str = "Attention", path: str = "") -> Page:
    """Build an HTML page that shows the attention maps of several texts. ``page.write(file)`` saves the page.

    ``path`` is the path of the checkpoint, shown below the heading.
    """
    data = {"title": title, "path": path, "texts": [_text_data(text_maps) for text_maps in maps]}
    return build_page(title, data, STYLES, SCRIPTS)


def _text_data(maps: AttentionMaps) -> Dict[str, Any]:
    """Convert the attention maps of one text to JSON-serializable data for the scripts in the HTML page."""
    maps_by_attention: Dict[str, Dict[str, Any]] = {}
    for name, weights in maps.items():
        attention, _, kind = name.rpartition(".")
        maps_by_attention.setdefault(attention, {})[kind] = {
            **_compress(weights),
            "entropy": _rounded(maps.entropy(name)),
            "coverage": _rounded(maps.coverage(name)),
        }
    return {
        "texts": maps.texts,
        "attentions": [
            {
                "name": name,
                "rows": maps.tokens(name)[0],
                "columns": maps.tokens(name)[1],
                "maps": maps_by_kind,
                "strengths": {key: _rounded(value) for key, value in maps.strengths.get(name, {}).items()},
            }
            for name, maps_by_kind in maps_by_attention.items()
        ],
    }


def _compress(weights: Tensor) -> Dict[str, Any]:
    """Quantize attention weights [heads, queries, keys] to one byte each, and compress them for an HTML page.

    Each head is scaled by its largest weight. Return a dictionary with the ``shape``, the ``largest`` weight
    per head, and the compressed ``bytes`` in base64.
    """
    largest = weights.amax(dim=(1, 2)).clamp(min=1e-12)
    levels = (weights / largest[:, None, None] * LEVELS).round().byte()
    content = base64.b64encode(zlib.compress(levels.numpy().tobytes(), 9)).decode()
    return {
        "shape": list(weights.shape),
        "largest": [float(f"{value:.5g}") for value in largest.tolist()],
        "bytes": content,
    }


def _rounded(values: Tensor) -> List[float]:
    return [round(value, 4) for value in values.tolist()]


main = console_script(PROGRAM, build_parser, _show, path_argument="out", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
