"""One HTML file that holds everything it shows: styles, scripts and data.

The page's content security policy allows the scripts that are in it, by their hash, and no request at all. The data are
JSON that no text in them can end, and the scripts put text on the page as text only.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from pathlib import Path
from typing import Any, Sequence

from luna_fairseq.files.finished_steps import replacing

ASSETS = Path(__file__).parent / "assets"
# Characters that would end a script element or, in older JavaScript, a string.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def page(title: str, data: Any, styles: Sequence[str], scripts: Sequence[str]) -> str:
    """The page's text.

    Args:
        title: of the window.
        data: what the scripts show, anything that JSON can hold; they find it by ``pageData()``.
        styles, scripts: names of files in assets/, in the order in which they are read.
    """
    sources = [(ASSETS / name).read_text(encoding="utf-8") for name in scripts]
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline'; {_allow(sources)}"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{html.escape(title)}</title>",
        *(f"<style>{(ASSETS / name).read_text(encoding='utf-8')}</style>" for name in styles),
        "</head>",
        "<body>",
        "<noscript>This page draws itself with the script that is in it: allow scripts to see it.</noscript>",
        f'<script type="application/json" id="data">{as_json(data)}</script>',
        *(f"<script>{source}</script>" for source in sources),
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def write_page(path: Path, text: str) -> None:
    """Write it whole or not at all. What is no Unicode, such as bytes of a file's name, becomes a question mark."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", errors="replace"))


def as_json(data: Any) -> str:
    """JSON that may stand in a script element."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(ESCAPES)


def _allow(sources: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode() for source in sources)
    return "script-src " + " ".join(f"'sha256-{digest}'" for digest in digests)
