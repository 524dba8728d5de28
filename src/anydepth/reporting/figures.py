"""What the figures of a report have in common: SVG that takes its colours and fonts from the page, and so follows its
theme."""

import hashlib
import html
import io
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

# matplotlib wants numbers for colours, the page wants names: these are exchanged when the SVG is written
INK, MUTED, RULE, PAPER, ACCENT = "#010101", "#020202", "#030303", "#040404", "#050505"
BETTER, WORSE = "#070707", "#080808"
SERIES = tuple(f"#0601{i:02}" for i in range(1, 11))
THEME = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper", ACCENT: "--accent"} | {
    color: f"--series-{i}" for i, color in enumerate(SERIES, 1)
}
THEME |= {BETTER: "--better", WORSE: "--worse"}
FONT = 12
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "anydepth",  # the same figure is the same SVG
    "text.parse_math": False,  # a run may be called $1
    "font.size": FONT,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
}

P = ParamSpec("P")


def styled(plot: Callable[P, str]) -> Callable[P, str]:
    """Run a plotting function under our style, wherever matplotlib looks it up."""

    @wraps(plot)
    def under_style(*args: P.args, **kwargs: P.kwargs) -> str:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return plot(*args, **kwargs)

    return under_style


def number(value: float) -> str:
    """One decimal for scores and long times, two digits that mean something for short times."""
    if abs(value) >= 9.95 or value == 0:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.1g}"


def plain(value: float) -> str:
    """At most two decimals, none where there is nothing behind the point."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def scale() -> str:
    """The colours of heat maps as a CSS gradient, low ones first."""
    import matplotlib
    from matplotlib.colors import to_hex

    colors = matplotlib.colormaps["viridis"]
    return f"linear-gradient(90deg, {', '.join(to_hex(colors(place / 8)) for place in range(9))})"


def signed(value: float, digits: int = 2) -> str:
    """With a sign, also that of a rounded 0."""
    return f"{value:+.{digits}f}".replace("-", "−")


def empty_figure(width: float, height: float) -> tuple[Any, Any]:
    """A figure of so many pixels, made without pyplot: nothing is global and no display is asked for."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), layout="constrained", facecolor="none")
    return figure, figure.add_subplot(facecolor="none")


def span_of(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def as_svg(figure: Any, description: str, titles: dict[str, str]) -> str:
    """The figure as inline SVG: no header, no namespaces, its own identifiers, the page's colours and font,
    and a tooltip for every group named in `titles`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    body = svg[svg.index("</defs>") + len("</defs>") :]  # the first definition is a style for the whole page
    for name, title in titles.items():
        body = body.replace(f'<g id="{name}">', f"<g><title>{html.escape(title)}</title>")
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    # what is left are definitions, referred to within the figure; of figures that look alike descriptions differ
    unique = hashlib.sha256((description + body).encode()).hexdigest()[:8]
    body = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>f{unique}-", body)
    body = re.sub(r"font-family: [^;]*; ", "", body)
    body = re.sub("|".join(THEME), lambda match: f"var({THEME[match[0]]})", body)
    body = re.sub(r"\s+", " ", body)
    width, height = (round(inches * 72) for inches in figure.get_size_inches())
    return (
        f'<svg viewBox="0 0 {width} {height}" style="max-width: {width}px; --width: {width}px" role="img"'
        f' aria-label="{html.escape(description)}">{body}'
    )
