"""Self-contained HTML pages: single files with all styles, scripts and data.

The content security policy of a page forbids network requests, and allows only the scripts in the page,
identified by their hashes. The data is stored as escaped JSON, so that no string can close the script
element. The scripts insert text as text nodes, never as HTML.
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
# Characters that could close a script element or, in older versions of JavaScript, a string literal.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline';"
NOTEBOOK_HEIGHT = 720  # pixels


@dataclass(frozen=True)
class Page:
    """Complete HTML page as text, which Jupyter notebooks display in a frame."""

    text: str

    @property
    def size(self) -> str:
        """File size of the page with its unit, such as "85 KB"."""
        count = len(self._encode())
        return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} KB"

    def write(self, path: Path) -> None:
        """Write the page to a file, atomically.

        Characters that cannot be encoded in UTF-8, which may occur in file names, become question marks.
        """
        with replacing(path) as temporary:
            temporary.write_bytes(self._encode())

    def _encode(self) -> bytes:
        return self.text.encode("utf-8", errors="replace")

    def _repr_html_(self) -> str:
        source = html.escape(self.text, quote=True)
        style = f"width:100%;height:{NOTEBOOK_HEIGHT}px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{source}"></iframe>'


def build_page(title: str, data: Any, styles: Sequence[str], scripts: Sequence[str]) -> Page:
    """Build an HTML page from JSON-serializable data and from style sheets and scripts in assets/.

    Scripts access the data with ``pageData()``.

    Example:
        >>> page = build_page("Runs", {"runs": []}, ["page.css"], ["page.js"])
        >>> page.text[:15]
        '<!DOCTYPE html>'
    """
    sources = [_read_asset(name) for name in scripts]
    hashes = (
        base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode() for source in sources
    )
    allowed_scripts = " ".join(f"'sha256-{value}'" for value in hashes)
    content = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(ESCAPES)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY} script-src {allowed_scripts}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{html.escape(title)}</title>",
        *(f"<style>{_read_asset(name)}</style>" for name in styles),
        "</head>",
        "<body>",
        "<noscript>This page is drawn by JavaScript. Allow scripts for this file to see it.</noscript>",
        f'<script type="application/json" id="data">{content}</script>',
        *(f"<script>{source}</script>" for source in sources),
        "</body>",
        "</html>",
    ]
    return Page("\n".join(parts) + "\n")


def _read_asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
