"""What commands have in common: standard output that may be closed or full."""

import argparse
import os
import sys
from contextlib import suppress
from typing import Any


class Parser(argparse.ArgumentParser):
    """A parser whose help and version fail where they cannot be written; argparse would ignore it."""

    def _print_message(self, message: str, file: Any = None) -> None:
        stream = sys.stderr if file is None else file
        if message and stream is not None:
            stream.write(message)
            stream.flush()


def drop_standard_output() -> None:
    """Stop writing to a closed pipe or a full disk: Python would complain about it at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
