"""One thread compiles at a time: torch holds a lock while it captures and compiles, and so does what compiles later."""

from contextlib import AbstractContextManager

from torch._dynamo import convert_frame


def compile_lock() -> AbstractContextManager:
    """torch's lock; in a process that was forked while another thread held it, an error that says so.

    A thread that holds another lock must not wait for it.
    """
    return convert_frame.compile_lock
