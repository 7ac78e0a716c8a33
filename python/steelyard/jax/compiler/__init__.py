"""JAX functions through the compiler: a frontend of jaxprs, and what runs programs under JAX's tracing."""
