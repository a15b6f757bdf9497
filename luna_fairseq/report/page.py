"""One HTML file that holds everything it shows: styles, scripts and data.

The page's content security policy allows the scripts that are in it, by their hash, and no request at all.
The data are JSON that no text in them can end, and the scripts put text on the page as text only.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

from luna_fairseq.files.writing import replacing

ASSETS = Path(__file__).parent / "assets"
# Characters that would end a script element or, in older JavaScript, a string.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline';"
NOTEBOOK_HEIGHT = 720  # pixels


@dataclass(frozen=True)
class Page:
    """A page that shows itself in a notebook.

    Attributes:
        text: the HTML.
    """

    text: str

    @property
    def _content(self) -> bytes:
        return self.text.encode("utf-8", errors="replace")

    def write(self, path: Path) -> None:
        """Write it whole or not at all. What is no Unicode, as in a file's name, becomes a question mark."""
        with replacing(path) as temporary:
            temporary.write_bytes(self._content)

    @property
    def size(self) -> str:
        """Of the file, in words."""
        count = len(self._content)
        return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} KB"

    def _repr_html_(self) -> str:
        source = html.escape(self.text, quote=True)
        style = f"width:100%;height:{NOTEBOOK_HEIGHT}px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{source}"></iframe>'


def page(title: str, data: Any, styles: Sequence[str], scripts: Sequence[str]) -> Page:
    """
    Args:
        title: of the window.
        data: what the scripts show, anything that JSON can hold; they find it by ``pageData()``.
        styles, scripts: names of files in assets/, in the order in which they are read.
    """
    sources = [_asset(name) for name in scripts]
    digests = (
        base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode() for source in sources
    )
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    # No text in the data can end the script element.
    content = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(ESCAPES)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY} script-src {allowed}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{html.escape(title)}</title>",
        *(f"<style>{_asset(name)}</style>" for name in styles),
        "</head>",
        "<body>",
        "<noscript>This page draws itself with the script that is in it: allow scripts to see it.</noscript>",
        f'<script type="application/json" id="data">{content}</script>',
        *(f"<script>{source}</script>" for source in sources),
        "</body>",
        "</html>",
    ]
    return Page("\n".join(parts) + "\n")


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
