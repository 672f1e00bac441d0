"""Record the operators that torch dispatches in one step; on tensors without values it needs no memory and no device.

The operators are those below autograd: composite ones are taken apart, the backward pass is there, and each is what a
back end would be asked for. `op_streams` describes how they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

MAX_OPERATORS: Final = 5_000_000
"""A step with more ends the recording: its stream would not fit in memory. Status: assumed."""
MAX_LIST: Final = 16
"""Numbers of a list operand that are written. Status: assumed."""

_SHORT: Final = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "b8", "complex64": "c64", "complex128": "c128",
}  # fmt: skip


def record(step: Callable[[], None]) -> list[str]:
    """The operators that `step` dispatches on this thread, in order, as `op_streams` writes them.

    The backward pass of CPU and fake tensors runs on the calling thread; work that a program gives to threads of its
    own is not seen.

    Raises:
        OverflowError: they are more than `MAX_OPERATORS`.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    stream: list[str] = []

    class Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = operator(*args, **(kwargs or {}))
            if len(stream) >= MAX_OPERATORS:
                raise OverflowError(f"the step has more than {MAX_OPERATORS} operators")
            stream.append(written(operator, args, kwargs or {}, result))
            return result

    with Recorder():
        step()
    return stream


def written(operator: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> str:
    """One call as text: `aten.mm.default(bf16[512,256], bf16[256,1024]) -> bf16[512,1024]`."""
    names = [argument.name for argument in operator._schema.arguments]
    given = [*zip(names, args, strict=False), *kwargs.items()]
    operands = [text for name, value in given if (text := _operand(name, value))]
    return f"{operator}({', '.join(operands)}) -> {_result(result)}"


def _operand(name: str, value: Any) -> str:
    """A tensor by type and sizes, a plain value with its name; empty for what is neither."""
    import torch

    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, torch.Tensor) for item in value):
            return f"[{', '.join(_tensor(item) if isinstance(item, torch.Tensor) else '-' for item in value)}]"
        if value and all(isinstance(item, (int, float, bool)) for item in value):
            more = ",..." if len(value) > MAX_LIST else ""
            return f"{name}=[{','.join(map(str, value[:MAX_LIST]))}{more}]"
        return ""
    if isinstance(value, torch.dtype):
        return f"{name}={_dtype(value)}"
    if isinstance(value, (bool, int, float)):
        return f"{name}={value}"
    if isinstance(value, str) and value.isprintable() and len(value) <= 40 and not value.isdigit():
        return f"{name}={value}"
    return ""


def _result(value: Any) -> str:
    """Results by type: a number that a step reads back differs from run to run, that it is read does not."""
    import torch

    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_result(item) for item in value)})"
    return "()" if value is None else type(value).__name__ if isinstance(value, (bool, int, float)) else "object"


def _tensor(value: Any) -> str:
    return f"{_dtype(value.dtype)}[{','.join(map(str, value.shape))}]"


def _dtype(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return _SHORT.get(name, name)


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors made inside have sizes and types and no values: a model of any size can be built and stepped.

    For a process of its own: `torch.nn.Module.to` is replaced inside by one that makes new parameters, since torch
    swaps fake ones in place, which fails while anything else refers to them.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = torch.nn.Module._apply
    torch.nn.Module._apply = _apply
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        torch.nn.Module._apply = before


def _apply(module: Any, function: Callable[[Any], Any], recurse: bool = True) -> Any:
    """What `torch.nn.Module._apply` does, with new parameters; one that several modules share stays one."""
    import torch

    made: dict[int, tuple[Any, Any]] = {}  # the old one is kept, so that its id is not used again
    for part in module.modules() if recurse else (module,):
        for name, parameter in part._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                with torch.no_grad():
                    changed = function(parameter)
                same = changed is parameter
                made[id(parameter)] = (
                    parameter, parameter if same else torch.nn.Parameter(changed, parameter.requires_grad)
                )  # fmt: skip
            part._parameters[name] = made[id(parameter)][1]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = function(buffer)
    return module
