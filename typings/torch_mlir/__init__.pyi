# The wheel has no types for its native part, so pyright takes every name of it as Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
