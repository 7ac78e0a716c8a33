# What Steelyard uses of the classes that define dialects in Python; any other name is Any.
from typing import Any, ClassVar, Generic, TypeVar

from torch_mlir import ir

_Kind = TypeVar("_Kind")

class Operand(ir.Value, Generic[_Kind]): ...
class Result(ir.OpResult, Generic[_Kind]): ...

class AttributeDef:
    name: str
    constraint: Any

class _Operation(ir.OpView):
    _op_name: ClassVar[str]
    _fields: ClassVar[list[Any]]
    _ODS_OPERAND_SEGMENTS: ClassVar[list[int] | None]
    _ODS_RESULT_SEGMENTS: ClassVar[list[int] | None]
    def __init_subclass__(cls, *, name: str = "", traits: list[Any] = ..., dialect: Any = None) -> None: ...

class _Type(ir.Type):
    params: list[ir.Attribute]
    def __init_subclass__(cls, *, name: str = "", dialect: Any = None) -> None: ...
    @classmethod
    def get(cls, *parameters: Any, context: ir.Context | None = None) -> Any: ...

class _Attribute(ir.Attribute):
    params: list[ir.Attribute]
    def __init_subclass__(cls, *, name: str = "", dialect: Any = None) -> None: ...
    @classmethod
    def get(cls, *parameters: Any, context: ir.Context | None = None) -> Any: ...

class Dialect:
    class Operation(_Operation): ...
    class Type(_Type): ...
    class Attribute(_Attribute): ...
    DIALECT_NAMESPACE: str
    operations: list[Any]
    def __init_subclass__(cls, name: str) -> None: ...
    @classmethod
    def load(cls) -> None: ...

def __getattr__(name: str) -> Any: ...
