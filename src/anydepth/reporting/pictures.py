"""The figures of a page as files of their own, for papers, slides and documents."""

import html
import re
from pathlib import Path

from anydepth.files import write_atomically

FIGURE = re.compile(r'<svg (viewBox="0 0 (\d+) (\d+)")[^>]* aria-label="([^"]*)">(.*?)</svg>', re.DOTALL)
THEME = re.compile(r"^(:root \{.*?^\}\n@media .*?^\}\n)", re.DOTALL | re.MULTILINE)
STYLE = "svg { background: var(--paper); font-family: var(--sans); }"


def write_pictures(page: Path, folder: Path) -> list[Path]:
    """One SVG for each figure, numbered as they stand on the page and named by what they show, in its two themes."""
    text = page.read_text("utf-8").replace('<div class="narrow"><svg', "")  # the same once more, for small screens
    theme = THEME.search((Path(__file__).parent / "report.css").read_text("utf-8"))
    assert theme is not None
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, (box, width, height, label, body) in enumerate(FIGURE.findall(text), 1):
        name = re.sub(r"\W+", "-", html.unescape(label).lower()).strip("-")[:60].rstrip("-")
        path = folder / f"{number:02}-{name}.svg"
        namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        head = f'<svg {namespaces} {box} width="{width}" height="{height}" role="img" aria-label="{label}">'
        write_atomically(path, f"{head}<style>{theme[1]}{STYLE}</style>{body}</svg>\n")
        written.append(path)
    return written
