"""The MLIR dialect `scaled`: quantized tensors and the operations on them.

`load` puts it, and the dialects of frontends, `torch` and `stablehlo`, into a context; `steelyard.dialect.scaled` has
the classes and builders.
"""

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo
from torch_mlir._mlir_libs._mlir import globals as _mlir_globals
from torch_mlir.dialects import torch as _torch_dialect

from steelyard.dialect.assembly.printer import print_module
from steelyard.dialect.assembly.reader import parse_module
from steelyard.dialect.remembered import forget
from steelyard.dialect.scaled import Scaled
from steelyard.forks import make_lock

__all__ = ["load", "make_context", "parse_module", "print_module"]

# Without this every lookup of an op class retries an import that fails, which costs 40 us each time.
_mlir_globals.append_dialect_search_prefix("steelyard.dialect")

_loading = make_lock()


def load(context: ir.Context) -> ir.Context:
    """Load the dialects that programs use into a context; loading twice does nothing."""
    # The classes of a dialect are those of the context that it was loaded into last.
    with _loading:
        if not context.is_dialect_loaded(Scaled.DIALECT_NAMESPACE):
            forget()
            _torch_dialect.register_dialect(context)
            _stablehlo.register_dialect(context, load=True)
            with context:
                Scaled.load()
    return context


def make_context() -> ir.Context:
    """A new context with the dialects loaded."""
    return load(ir.Context())
