"""`weights="quantized"`: replace parameters that only quantized GEMMs read by quantized tensors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import codes_shape, stored_shape
from steelyard.ir.weights import WeightForm
from steelyard.runtime.program import Program
from steelyard.runtime.state import State
from steelyard.runtime.weights import WeightArgument
from steelyard.tensor import kernels
from steelyard.tensor.from_scheme import make_quantizer
from steelyard.tensor.gemm_layout import needs_padding
from steelyard.tensor.packed import PackedTensor, packed_tensor
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tensor.scheme_quantizer import SchemeQuantizer
from steelyard.tensor.stack import QuantizedStack


@dataclass
class _Uses:
    """What programs do with a parameter."""

    weights: list[WeightArgument] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Ops, and modules outside of programs, that read its values."""


def storable_parameters(root: torch.nn.Module) -> frozenset[str]:
    """The parameters that are replaced although they require a gradient: all, unless others are frozen.

    A model that is compiled for inference as it was made requires gradients of everything and will compute none. In
    one that has frozen parameters, the others are those that are trained: adapters, for instance.
    """
    parameters = dict(root.named_parameters(remove_duplicate=False))
    has_frozen = any(not parameter.requires_grad for parameter in parameters.values())
    return frozenset() if has_frozen else frozenset(parameters)


def store_weights(
    root: torch.nn.Module,
    programs: Iterable[Program],
    state: State,
    storable: frozenset[str],
    outside: Mapping[int, str],
) -> tuple[set[str], dict[str, str]]:
    """Replace plain parameters by quantized ones, if they are frozen or in `storable`.

    `outside` has the names, by id, of modules that read their parameters without a program.
    Returns the names of the replaced ones, and why each other weight of a quantized GEMM stays in high precision.
    """
    uses: dict[str, _Uses] = {}
    for program in programs:
        for weight in program.weight_arguments:
            uses.setdefault(weight.parameter, _Uses()).weights.append(weight)
        for name, readers in program.parameter_readers.items():
            uses.setdefault(name, _Uses()).others.extend(readers)
    owners = _owners(root)
    replaced, kept = set(), {}
    for name, use in uses.items():
        if not use.weights or name not in owners:
            continue
        parameter, *holders = owners[name]
        use.others += [outside[id(module)] for module, _ in holders if id(module) in outside]
        is_trained = parameter.requires_grad and name not in storable
        reason = "it is trained" if is_trained else _reason_to_keep(parameter, use)
        if reason:
            kept[name] = reason
        elif not _is_stored(parameter, use.weights[0]):
            _replace(owners[name], _quantized(parameter, use.weights[0], state))
            replaced.add(name)
    return replaced, kept


def _owners(root: torch.nn.Module) -> dict[str, list]:
    """Each parameter by every name it has: the parameter, then the modules and attributes that hold it."""
    owners: dict[int, list] = {}
    names: dict[str, list] = {}
    for prefix, module in root.named_modules(remove_duplicate=False):
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                entry = owners.setdefault(id(parameter), [parameter])
                entry.append((module, attribute))
                names[f"{prefix}.{attribute}" if prefix else attribute] = entry
    return names


def _reason_to_keep(parameter: torch.Tensor, use: _Uses) -> str:
    forms = {weight.form for weight in use.weights}
    if use.others:
        return f"{', '.join(sorted(set(use.others)))} reads its values too"
    if len(forms) > 1:
        return "GEMMs read it in more than one format"
    (form,) = forms
    if form is None and use.weights[0].states:
        return "each step of training records the amax of its values for its delayed scale"
    if form is None or parameter.dim() not in (2, 3):
        return "GEMMs read a part or another shape of it"
    is_held = isinstance(parameter, QuantizedTensor) and _held_parts(parameter, form)[1] is not None
    if not is_held and form.scheme.source != "delayed" and make_quantizer(form.scheme) is None:
        return f"there is no tensor of its format, {form.scheme.element} in {form.scheme.block}"
    return ""


def _is_stored(parameter: torch.Tensor, weight: WeightArgument) -> bool:
    """Whether a parameter already has the layout that GEMMs read."""
    form = weight.form
    assert form is not None
    if not isinstance(parameter, QuantizedTensor):
        return False
    is_packed = parameter.is_packed if isinstance(parameter, QuantizedStack) else isinstance(parameter, PackedTensor)
    if is_packed != (form.layout == "packed"):
        return False
    if parameter._with_gemm_swizzled_scales != _can_swizzle(parameter, form):
        return False
    parts = parameter.weight_parts(form.scheme, is_transposed=form.is_transposed, layout=_kept_layout(form))
    memory = {part.data_ptr() for part in parameter._parts()}
    return parts is not None and parts[0].data_ptr() in memory


def _kept_layout(form: WeightForm) -> str:
    """The layout of the codes that a parameter keeps: for GPUs they are compact, whatever the order of the scales."""
    return "packed" if form.layout == "packed" else "compact"


def _can_swizzle(parameter: torch.Tensor, form: WeightForm) -> bool:
    """Whether a parameter's scales can be kept in the order that GPU GEMMs read.

    What must be padded or transposed before is kept compact, and arranged beside it when a program first reads it.
    """
    is_swizzled = form.layout == "gemm" and form.scheme.has_blocks and not form.is_transposed
    return is_swizzled and not needs_padding(parameter.shape, form.multiples)


# Not inference tensors: a parameter outlives the call that makes it, which may run in inference mode.
@torch.inference_mode(False)
@torch.no_grad()
def _quantized(parameter: torch.Tensor, weight: WeightArgument, state: State) -> torch.nn.Parameter:
    form = weight.form
    assert form is not None
    quantizer, parts = _held_parts(parameter, form)
    if parts is None:
        scales = [state.tensors[name] for name in weight.states]
        values = parameter.dequantize() if isinstance(parameter, QuantizedTensor) else parameter.detach()
        scale = scales[0] if scales else None
        quantizer = make_quantizer(form.scheme, scale)
        parts = _compact_parts(values, form, scale) if form.layout == "gemm" else weight.make(values, *scales)
    assert quantizer is not None
    if parameter.dim() == 3:
        tensor = QuantizedStack.from_parts(
            parts, quantizer, parameter.shape, parameter.dtype, transposed=form.is_transposed
        )
    elif form.layout == "packed":
        tensor = _packed(parts[0], form, parameter, quantizer)
    else:
        quantizer.optimize_for_gemm = _can_swizzle(parameter, form)
        copies, shape = [part.clone() for part in parts], tuple(parameter.shape)
        tensor = assemble(copies, quantizer, shape, parameter.dtype, is_transposed=form.is_transposed)
    return torch.nn.Parameter(tensor, requires_grad=False)


def _held_parts(
    parameter: torch.Tensor, form: WeightForm
) -> tuple[SchemeQuantizer | None, tuple[torch.Tensor, ...] | None]:
    """What a parameter that is quantized already holds of a weight, and the quantizer of such matrices."""
    if not isinstance(parameter, QuantizedTensor):
        return None, None
    parts = parameter.weight_parts(form.scheme, is_transposed=form.is_transposed, layout=_kept_layout(form))
    own: SchemeQuantizer = parameter._quantizer
    # A stack has the quantizer of what it stores, a matrix that of what it presents.
    is_other = form.is_transposed and not isinstance(parameter, QuantizedStack)
    return own.of_transpose() if is_other else own.copy(), parts


def _compact_parts(values: torch.Tensor, form: WeightForm, scale: torch.Tensor | None) -> list[torch.Tensor]:
    """What the function of a weight makes before it arranges it for GEMMs."""
    matrix = values.t().contiguous() if form.is_transposed else values
    given = None if scale is None else scale.to(values.device)
    copy, _ = kernels.quantize(matrix, form.scheme, None, scale=given)
    assert copy is not None
    return [part for part in (copy.codes, copy.scales, copy.amax) if part is not None]


def _packed(data: torch.Tensor, form: WeightForm, parameter: torch.Tensor, quantizer: SchemeQuantizer) -> torch.Tensor:
    alone = quantizer.of_transpose() if form.is_transposed else quantizer
    alone.set_usage(rowwise=not form.is_transposed, columnwise=form.is_transposed)
    return packed_tensor(data, parameter.shape, alone, parameter.dtype)


def assemble(
    parts: Sequence[torch.Tensor],
    quantizer: SchemeQuantizer,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    is_transposed: bool,
) -> QuantizedTensor:
    """The tensor whose parts are those of the rowwise copy that a quantizer makes of a matrix, or of its transpose."""
    scheme = quantizer.row_scheme
    rows, columns = shape[::-1] if is_transposed else shape
    codes, scale_inv, *amax = parts
    codes = codes.reshape(codes_shape(scheme, stored_shape(scheme, (rows, columns), columnwise=False)))
    copy = QuantizedCopy(codes, scale_inv, amax[0] if amax else None, scheme, (rows, columns), False)
    tensor = quantizer.assemble((copy, None), (rows, columns), dtype)
    return tensor.t() if is_transposed else tensor


def replace_parameter(root: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Put a frozen parameter with these values in the place of another, wherever a model holds it."""
    owners = _owners(root)
    if name in owners:
        _replace(owners[name], torch.nn.Parameter(tensor, requires_grad=False))


def _replace(entry: list, new: torch.nn.Parameter) -> None:
    for module, attribute in entry[1:]:
        module._parameters[attribute] = new
    entry[0] = new
