"""From a GPU module in MLIR to PTX text: MLIR's own lowering to NVVM, then LLVM's NVPTX backend.

Needs no GPU, driver or CUDA toolkit. The text of the wheel's newer LLVM is read by the LLVM of llvmlite.
"""

import re
import struct
from functools import cache

import llvmlite.binding as llvm
from torch_mlir import ir
from torch_mlir.dialects import llvm as llvm_dialect
from torch_mlir.passmanager import PassManager

from steelyard.targets.architectures import Target

_TRIPLE = "nvptx64-nvidia-cuda"
_TO_NVVM = "builtin.module(gpu.module(convert-scf-to-cf,convert-gpu-to-nvvm,reconcile-unrealized-casts))"


def lower_to_nvvm(module: ir.Module) -> None:
    """Leave only `llvm` and `nvvm` operations in the module's `gpu.module`s."""
    with module.context:
        PassManager.parse(_TO_NVVM).run(module.operation)


def emit_ptx(module: ir.Module, target: Target) -> str:
    """The PTX of a lowered module that holds one `gpu.module`."""
    with module.context, ir.Location.unknown():
        plain = ir.Module.create()
        (gpu_module,) = module.body.operations
        for op in gpu_module.regions[0].blocks[0].operations:
            plain.body.append(op.operation.clone())
        return _compile(_in_older_syntax(llvm_dialect.translate_module_to_llvmir(plain.operation)), target)


def _in_older_syntax(text: str) -> str:
    """LLVM IR with float constants as older releases read them: as the bits of a double."""
    text = re.sub(r"\bf0x([0-9A-F]{16})\b", r"0x\1", text)
    text = re.sub(r"\bf0x([0-9A-F]{8})\b", lambda match: _as_double(struct.unpack(">f", bytes.fromhex(match[1]))), text)
    text = re.sub(r" ([+-]inf)\b", lambda match: f" {_as_double((float(match[1]),))}", text)
    return "\n".join(_respell_decimals(line) if "float" in line else line for line in text.splitlines())


def _respell_decimals(line: str) -> str:
    """Decimals stand for the nearest float, which older releases want to be told exactly."""
    single = struct.Struct("f")
    return re.sub(
        r"(?<= )-?\d\.\d+e[+-]\d+", lambda match: _as_double(single.unpack(single.pack(float(match[0])))), line
    )


def _as_double(value: tuple[float]) -> str:
    return f"0x{struct.pack('>d', *value).hex().upper()}"


def _compile(text: str, target: Target) -> str:
    machine = _machine(target)
    module = llvm.parse_assembly(text)
    module.triple = _TRIPLE
    module.data_layout = str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return machine.emit_assembly(module)


@cache
def _machine(target: Target) -> llvm.TargetMachine:
    # Addresses of shared memory fit 32 bits.
    llvm.set_option("nvptx", "--nvptx-short-ptr")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    major, minor = target.ptx_version
    nvptx = llvm.Target.from_triple(_TRIPLE)
    return nvptx.create_target_machine(cpu=target.name, features=f"+ptx{major}{minor}", opt=3)
