"""One page in one file: what is shown, the code that shows it, and a plotting library, with no access to the network.

Data is in the page as compressed JSON, which its code puts into text nodes: nothing that comes from a model is HTML. A
content policy lets only the page's own scripts run, by their hashes, and lets nothing be loaded.
"""

import base64
import gzip
import hashlib
import html
import importlib.util
import json
from pathlib import Path
from typing import Any

from steelyard.errors import SteelyardError

_FOLDER = Path(__file__).parent / "page"
_COMMON = ("numbers.js", "elements.js", "charts.js")
_SCRIPTS = {
    "report": (*_COMMON, "overview.js", "layer_map.js", "gemms.js", "program.js", "costs.js", "report.js"),
    "comparison": (*_COMMON, "comparison.js"),
}
_POLICY = (
    "default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def make_page(kind: str, title: str, data: dict[str, Any]) -> str:
    """The HTML of a page: a `report` or a `comparison`."""
    scripts = [*_plotting_library(), _own_script(_SCRIPTS[kind])]
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    parts = {
        "POLICY": _POLICY.format(hashes=hashes),
        "TITLE": html.escape(title),
        "STYLE": (_FOLDER / "page.css").read_text(),
        "DATA": _packed(data),
        "SCRIPTS": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    page = (_FOLDER / "page.html").read_text()
    # In pieces, so that nothing that is put in is searched for other marks.
    return "".join(parts.get(piece, piece) for piece in page.split("%%"))


def check_plotting_library() -> None:
    """Refuse to make a page where the plotting library is missing, before anything is measured for it."""
    if importlib.util.find_spec("bokeh") is None:
        raise SteelyardError("a page needs the package bokeh, which is not installed; pip install 'steelyard[report]'")


def _plotting_library() -> list[str]:
    check_plotting_library()
    from bokeh.resources import Resources

    scripts = Resources(mode="inline", components=["bokeh", "bokeh-api"], log_level="error").js_raw
    if any("</script" in script.lower() for script in scripts):
        raise SteelyardError("this version of bokeh cannot be put into a page: its code has '</script'; install 3.9")
    return scripts


def _own_script(names: tuple[str, ...]) -> str:
    texts = [(_FOLDER / name).read_text() for name in names]
    return "".join(('"use strict";\n(() => {\n', *texts, "})();\n"))


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _packed(data: dict[str, Any]) -> str:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    # Without the time, so that equal data makes an equal page.
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
