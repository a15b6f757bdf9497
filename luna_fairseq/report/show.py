"""``luna-show``: one HTML file in which the attention of a trained model to a text can be watched.

For each layer and head: what P's rows pack, what tokens unpack of them, and what each token reads of each
other in all; how even and how complete it is; of a translation model the translation with its alignment.
CHECKPOINT is one of a translation, masked or causal language model or of a text classifier, ours or
fairseq's. The encoding (sentencepiece.bpe.model, bpe.codes, encoder.json and vocab.bpe) is looked for beside
the checkpoint and in its data; without any, text is words between spaces. The file opens from disk, and asks
the network for nothing.
"""

from __future__ import annotations

import argparse
import base64
import sys
import zlib
from pathlib import Path
from typing import Any, Dict, List, Sequence

from torch import Tensor

from luna_fairseq.commands.arguments import CommandParser
from luna_fairseq.commands.reporting import console_script
from luna_fairseq.errors import InputError
from luna_fairseq.progress import progress
from luna_fairseq.report.attention import AttentionMaps, attention_maps
from luna_fairseq.report.page import Page, page
from luna_fairseq.text.bitext import read_lines

PROGRAM = "luna-show"
STYLES = ("page.css", "show.css")
SCRIPTS = ("page.js", "heatmap.js", "show.js")
MOST_TEXTS = 50
LEVELS = 255  # a weight is kept as a share of the head's largest, in one byte


def build_parser() -> CommandParser:
    """The command's options."""
    parser = CommandParser(PROGRAM, __doc__)
    parser.path("checkpoint", "a trained model", "CHECKPOINT")
    what = parser.add_mutually_exclusive_group(required=True)
    text = "what to look at; may be given several times"
    what.add_argument("--text", action="append", metavar="TEXT", help=text)
    lines = f"the same, a line each, {MOST_TEXTS} at most"
    what.add_argument("--input", type=Path, metavar="FILE", help=lines)
    target = "the translation to look at (default: the model's own); with one --text"
    parser.add_argument("--target", metavar="TEXT", help=target)
    parser.path("--data", "folder of the dictionaries (default: the one of the training)", "DIR")
    parser.count("--beam", 5, "beam size")
    parser.path("--out", "(default: %(default)s)", default=Path("attention.html"))
    return parser


def _show(args: argparse.Namespace) -> None:
    texts = args.text or [line for line in read_lines(args.input) if line.strip()]
    if not 0 < len(texts) <= MOST_TEXTS:
        raise InputError(f"{len(texts)} texts: give 1 to {MOST_TEXTS}")
    if args.target is not None and len(texts) > 1:
        raise InputError("--target is the translation of one text: give one --text with it")
    from luna_fairseq.report.loading import load

    hub = load(args.checkpoint, args.data)
    counted = progress(texts, "attention", "texts")
    maps = [attention_maps(hub, text, args.target, args.beam) for text in counted]
    shown = attention_page(maps, f"Attention of {args.checkpoint.name}", str(args.checkpoint))
    shown.write(args.out)
    for one in maps:
        print(*(f"{name}: {text}" for name, text in one.texts.items()), sep="\n")
    print(f"wrote {args.out} ({shown.size})")


def attention_page(maps: Sequence[AttentionMaps], title: str = "Attention", path: str = "") -> Page:
    """The page of some texts' attention.

    Args:
        maps: of each text, what ``attention_maps`` returns.
        title: heading.
        path: of the checkpoint, to be shown.
    """
    return page(title, {"title": title, "path": path, "texts": [_text(one) for one in maps]}, STYLES, SCRIPTS)


def _text(maps: AttentionMaps) -> Dict[str, Any]:
    attentions: Dict[str, Dict[str, Any]] = {}
    for name, weights in maps.items():
        attention, _, kind = name.rpartition(".")
        attentions.setdefault(attention, {})[kind] = {
            **_packed(weights),
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
                "maps": kinds,
                "strengths": {key: _rounded(value) for key, value in maps.strengths.get(name, {}).items()},
            }
            for name, kinds in attentions.items()
        ],
    }


def _packed(weights: Tensor) -> Dict[str, Any]:
    """Weights [H, T, S] as their shape, each head's largest, and bytes, compressed."""
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


main = console_script(PROGRAM, build_parser, _show, place="out", hides_log=True)


if __name__ == "__main__":
    sys.exit(main())
