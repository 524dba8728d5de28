"""`@config`: a frozen, keyword-only dataclass that refuses unknown settings.

Each part of the library declares its settings in such a class, beside the code that reads them; `config.py` puts
them together, reads them from TOML and checks them.
"""

from dataclasses import dataclass
from typing import Any, dataclass_transform


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type) -> Any:
    # pydantic ignores unknown keys of plain dataclasses unless each class says otherwise
    cls.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]
    return dataclass(frozen=True, kw_only=True)(cls)
