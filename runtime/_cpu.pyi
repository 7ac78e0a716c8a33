# The native module; its docstrings say what each function takes.
from typing import Any

def __getattr__(name: str) -> Any: ...
