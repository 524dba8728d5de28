"""One Transformer, trained once, run at any depth."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anydepth.run import Run, load

__all__ = ["Run", "load"]


def __getattr__(name: str) -> Any:
    # importing torch takes seconds: `anydepth --help` should not wait for it
    if name in __all__:
        from anydepth import run

        return getattr(run, name)
    raise AttributeError(f"module 'anydepth' has no attribute {name!r}")
