"""A pretended GPU: tensors that hold a CPU tensor each and obey the rules of a GPU.

A test runs an engine on it that would need a GPU otherwise. Numbers are real, so that answers can be compared with the
CPU's. The rules of a GPU hold:

* A tensor of the host and one of the device do not mix, unless the host's is a single number.
* Reading a number on the host, and a copy between pageable memory and the device, make the host wait. Each such moment
  is noted in :data:`EVENTS` with the function of the package that caused it.
* Operations that only CUDA has are answered by their counterparts on the CPU.
* Every operation that computes or copies counts as one kernel in :data:`EVENTS`; views and allocations count as none.

It finds mixed devices, needless waits and wrong shapes. It finds no fault of a kernel, and no fault of timing.

:func:`install` must be called before utaca is imported: tensors of inference mode cannot be wrapped, so inference mode
becomes ``no_grad``, and utaca's decorators take it at import. So a test runs a process of its own.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "npu"
"""The name that torch knows the device by; torch has it for devices that are written in Python."""

aten = torch.ops.aten
_COPIES = {aten._to_copy.default, aten.copy_.default}
_INDEXING = {aten.index.Tensor, aten.index_put_.default}
_NO_KERNEL = {
    *(aten.empty, aten.new_empty, aten.empty_like, aten.empty_strided, aten.new_empty_strided),
    *(aten._unsafe_view, aten._local_scalar_dense, aten.lift_fresh),
}
"""Operations that launch no kernel, as views do."""
_ONLY_ON_DEVICES = ("_fused_rms_norm",)
"""Operations that are one kernel on CUDA, and several operations on the CPU."""
_LIBRARY = torch.library.Library("aten", "IMPL")
_CALLERS = (f"{os.sep}utaca{os.sep}", f"{os.sep}bench{os.sep}")
"""Parts of the paths of the files that can be blamed for a wait."""
_real_tensor, _real_empty = torch.tensor, torch.empty
_pinned: set[int] = set()
"""Addresses of the storages that count as pinned memory."""


_tapes: list[list[tuple[Any, ...]]] = []
"""What graphs under record have so far; empty unless one is recorded."""


class Graph:
    """A CUDA graph: operations that :func:`recording` noted, which a replay does again on the same memory.

    The numbers and shapes of an operation stay those of the recording, as on CUDA. A replay counts as one kernel.
    """

    def __init__(self) -> None:
        self.tape: list[tuple[Any, ...]] = []

    def replay(self) -> None:
        EVENTS.operations += 1
        EVENTS.kernels["graph"] += 1
        for func, args, kwargs, result, writes in self.tape:
            again = _computed(func, _mapped(_held, args), {name: _mapped(_held, x) for name, x in kwargs.items()})
            if writes:
                continue
            for old, new in zip(_tensors([result]), _tensors([again]), strict=True):
                _held(old).copy_(new)


@contextmanager
def recording(graph: Graph, **_: Any) -> Iterator[None]:
    """As ``torch.cuda.graph``: operations of the device are noted, and whatever makes the host wait is refused."""
    _tapes.append(graph.tape)
    try:
        yield
    finally:
        _tapes.pop()


@dataclass
class Events:
    """What happened on the device: ``waits`` of the host and ``kernels``, by their cause, and operations in all."""

    waits: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    operations: int = 0

    def clear(self) -> None:
        self.waits.clear()
        self.kernels.clear()
        self.operations = 0


EVENTS = Events()


class DeviceTensor(Tensor):
    """A tensor of the pretended device; ``held`` is the CPU tensor with its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> DeviceTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    is_cuda = property(lambda self: True)

    def tolist(self) -> Any:
        _wait("tolist")
        return self.held.tolist()

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """Context in which factories such as ``torch.zeros(..., device="npu")`` make tensors of the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _NoGrad(torch.no_grad):
    """``torch.no_grad`` that can be called as ``torch.inference_mode`` is."""

    def __new__(cls, mode: bool = True) -> Self:
        # torch.no_grad takes an argument for the function that it decorates.
        return super().__new__(cls)

    def __init__(self, mode: bool = True) -> None:
        super().__init__()


def install() -> None:
    """Make the device known to torch; to be called before utaca is imported."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    for name in _ONLY_ON_DEVICES:
        # Without a kernel of the device, torch would take the operation apart before the device sees it.
        _LIBRARY.impl(name, _never_called, "PrivateUse1")
    torch.inference_mode = _NoGrad
    torch.cuda.synchronize = lambda *_: _wait("synchronize")
    torch.cuda.CUDAGraph, torch.cuda.graph = Graph, recording
    torch.cuda.device = lambda device: nullcontext()


@contextmanager
def device() -> Iterator[None]:
    """Context in which tensors are made on the device.

    Models must be loaded before it begins: transformers loads weights in a context of its own, which a patched
    ``torch.tensor`` would escape.
    """
    torch.tensor, torch.empty = _tensor, _empty
    try:
        with Device():
            yield
    finally:
        torch.tensor, torch.empty = _real_tensor, _real_empty


def move(module: nn.Module) -> nn.Module:
    """Put a module's parameters and buffers on the device."""
    moved: dict[int, nn.Parameter] = {}
    for each in module.modules():
        for name, parameter in each._parameters.items():
            if parameter is not None:
                # Tied weights stay tied.
                new = nn.Parameter(DeviceTensor(parameter.data), requires_grad=False)
                each._parameters[name] = moved.setdefault(id(parameter), new)
        for name, buffer in each._buffers.items():
            if buffer is not None:
                each._buffers[name] = DeviceTensor(buffer)
    return module


def _tensor(data: Any, *, dtype: torch.dtype | None = None, device: Any = None, **others: Any) -> Tensor:
    """``torch.tensor``, which makes a tensor of the device from pageable memory and so waits."""
    pin = others.pop("pin_memory", False)
    made = _real_tensor(data, dtype=dtype, **others)
    if pin:
        _pin(made)
    return made if device is None else made.to(device)


def _empty(*sizes: Any, pin_memory: bool = False, **others: Any) -> Tensor:
    made = _real_empty(*sizes, **others)
    return _pin(made) if pin_memory else made


def _pin(tensor: Tensor) -> Tensor:
    """Count the memory of a CPU tensor as pinned, as long as the memory is there."""
    storage = tensor.untyped_storage()
    address = storage.data_ptr()
    _pinned.add(address)
    weakref.finalize(storage, _pinned.discard, address)
    return tensor


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _pinned


def _never_called(*_: Any) -> None:
    raise RuntimeError("a tensor of the pretended device holds no memory of the device")


def _wait(kind: str) -> None:
    """Note that the host waits, and where in the package."""
    if _tapes:
        raise RuntimeError(f"operation not permitted while a graph is recorded: {kind}")
    frame = sys._getframe(1)
    while frame.f_back and not any(part in frame.f_code.co_filename for part in _CALLERS):
        frame = frame.f_back
    code = frame.f_code
    name = code.co_name
    # A comprehension is part of the function around it.
    while name.startswith("<") and frame.f_back:
        frame = frame.f_back
        name = frame.f_code.co_name
    EVENTS.waits[f"{kind} at {os.path.basename(code.co_filename)}:{name}"] += 1


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run one operation by the rules of the device."""
    tensors = [*_tensors(args), *_tensors(kwargs.values())]
    on_device = any(isinstance(x, DeviceTensor) for x in tensors)
    if func is aten.is_pinned.default:
        return not on_device and _is_pinned(args[0])
    if func is aten._pin_memory.default:
        return _pin(args[0].clone())
    wanted = kwargs.get("device")
    pin = kwargs.pop("pin_memory", None)
    if func in _COPIES:
        return _copied(func, args, kwargs)
    to_device = on_device if wanted is None else torch.device(wanted).type == NAME
    if wanted is not None:
        kwargs["device"] = torch.device("cpu")
    if on_device:
        _refuse_mixed(func, tensors)
        if func in (aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default):
            _wait("item")
    result = _computed(func, _mapped(_held, args), {name: _mapped(_held, value) for name, value in kwargs.items()})
    if on_device or to_device:
        _count(func)
    if pin and not to_device:
        return _pin(result)
    written = kwargs.get("out", args[0] if func._schema.name.endswith("_") else None)
    if written is not None and not isinstance(result, tuple | list):
        _note(func, args, kwargs, written, True)
        return written
    made = _mapped(lambda x: DeviceTensor(x) if type(x) is Tensor else x, result) if to_device else result
    if _kernel(func):
        _note(func, args, kwargs, made, False)
    return made


def _copied(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a copy, within the device or between it and the host."""
    if func is aten.copy_.default:
        target, source = args[:2]
        to_device = isinstance(target, DeviceTensor)
        host = source if to_device else target
        non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    else:
        source = args[0]
        wanted = kwargs.pop("device", None)
        to_device = isinstance(source, DeviceTensor) if wanted is None else torch.device(wanted).type == NAME
        host = source if to_device else None
        non_blocking = kwargs.get("non_blocking", False)
    if isinstance(source, DeviceTensor) != to_device:
        pinned = host is not None and _is_pinned(host)
        if not (pinned and non_blocking):
            _wait("copy to the device" if to_device else "copy to the host")
    if to_device or isinstance(source, DeviceTensor):
        _count(func)
    if _tapes and not (to_device and isinstance(source, DeviceTensor)):
        raise RuntimeError("a graph must not copy between host and device: it would repeat the memory of today")
    if func is aten.copy_.default:
        _held(target).copy_(_held(source))
        _note(func, args, kwargs, target, True)
        return target
    # A copy, even where the type stays as it is: the device has memory of its own.
    result = aten._to_copy.default(_held(source), **kwargs)
    made = DeviceTensor(result) if to_device else result
    _note(func, args, kwargs, made, False)
    return made


def _note(func: Any, args: Any, kwargs: dict[str, Any], result: Any, writes: bool) -> None:
    """Add an operation to the graph under record, if there is one; ``writes``: into memory that was there before."""
    if _tapes:
        _tapes[-1].append((func, args, kwargs, result, writes))


def _refuse_mixed(func: Any, tensors: list[Tensor]) -> None:
    """Raise RuntimeError, as CUDA does, if an operation gets tensors of the host and of the device."""
    for x in tensors:
        if isinstance(x, DeviceTensor) or x.dim() == 0:
            continue
        if func in _INDEXING:
            # CUDA copies indices of the host to the device, and waits.
            _wait("index of the host")
            continue
        raise RuntimeError(f"{func}: expected all tensors on the device, got one of the CPU of shape {tuple(x.shape)}")


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors among ``values``, also in lists and tuples."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """``value`` with ``change`` applied to it, or to each item of a list or tuple."""
    if isinstance(value, list | tuple):
        return type(value)(_mapped(change, item) for item in value)
    return change(value)


@cache
def _kernel(func: Any) -> str:
    """The name of the kernel that an operation launches; "" if it launches none."""
    returned = func._schema.returns
    alias = returned[0].alias_info if returned else None
    is_view = alias is not None and not alias.is_write
    return "" if is_view or func.overloadpacket in _NO_KERNEL else func._schema.name.removeprefix("aten::")


def _count(func: Any) -> None:
    EVENTS.operations += 1
    if kernel := _kernel(func):
        EVENTS.kernels[kernel] += 1


def _held(x: Any) -> Any:
    return x.held if isinstance(x, DeviceTensor) else x


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result on the CPU, also of operations that only CUDA has."""
    if func is aten._scaled_dot_product_flash_attention.default:
        if args[0].dtype not in (torch.bfloat16, torch.float16):
            raise RuntimeError(f"flash attention has no {args[0].dtype}")
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(*args[:5], scale=kwargs.get("scale"))
        return out, lse, None, None, 0, 0, None, None, None
    if func is aten._scaled_dot_product_efficient_attention.default:
        return *_efficient_attention(*args, **kwargs), None, None
    if func.__name__.startswith("_thnn_fused_lstm_cell"):
        return _lstm_cell(*args)
    if func in (aten.mm.dtype, aten.bmm.dtype):
        return args[0].to(args[2]) @ args[1].to(args[2])
    return func(*args, **kwargs)


def _efficient_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None,
    compute_lse: bool,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Output, and the log-sum-exp padded to 32 queries as CUDA's memory-efficient attention returns it."""
    logits = query.double() @ keys.double().mT * scale
    if bias is not None:
        logits = logits + bias
    if causal:
        logits = logits.masked_fill(~torch.ones(logits.shape[-2:], dtype=torch.bool).tril(), float("-inf"))
    lse = logits.logsumexp(-1).float()
    padded = nn.functional.pad(lse, (0, -lse.shape[-1] % 32))
    return (logits.softmax(-1) @ values.double()).to(query.dtype), padded


def _lstm_cell(
    from_input: Tensor, from_hidden: Tensor, cell: Tensor, bias: Tensor | None = None, more: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """CUDA's fused cell of an LSTM."""
    gates = from_input + from_hidden
    for each in (bias, more):
        if each is not None:
            gates = gates + each
    enter, forget, new, out = gates.chunk(4, -1)
    state = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return out.sigmoid() * state.tanh(), state, gates
