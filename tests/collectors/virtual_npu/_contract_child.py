"""Runs with the real torch_npu: what its operators take, and which give a gradient; prints JSON."""

from __future__ import annotations

import json
import sys
from typing import Any


def takes(torch: Any, cases: list[list[Any]]) -> list[bool]:
    """Whether an operator takes a literal for an argument of a type; a case is (type, literal)."""
    library = torch.library.Library("contract_check", "DEF")
    found = []
    for number, (schema, text) in enumerate(cases):
        library.define(f"f{number}({schema} x) -> Tensor")
        library.impl(f"f{number}", lambda x: torch.zeros(1), "CompositeExplicitAutograd")
        try:
            getattr(torch.ops.contract_check, f"f{number}")(eval(text))
            found.append(True)
        except RuntimeError:
            found.append(False)
    return found


def gradients(torch: Any, torch_npu: Any) -> dict[str, str]:
    """Operator -> own, refuses or none, from what backward() does."""
    leaves: list[Any] = []

    def tensor(*shape: int) -> Any:
        leaves.append(torch.zeros(shape, device="npu", dtype=torch.float16, requires_grad=True))
        return leaves[-1]

    calls: dict[str, Any] = {
        "npu_rms_norm": lambda: torch_npu.npu_rms_norm(tensor(4, 16), tensor(16))[0],
        "npu_swiglu": lambda: torch_npu.npu_swiglu(tensor(4, 16)),
        "npu_format_cast": lambda: torch_npu.npu_format_cast(tensor(16, 16), 29),
        "npu_add_rms_norm": lambda: torch_npu.npu_add_rms_norm(tensor(4, 16), tensor(4, 16), tensor(16))[0],
        "npu_gelu_mul": lambda: torch_npu.npu_gelu_mul(tensor(4, 16)),
        "npu_transpose": lambda: torch_npu.npu_transpose(tensor(4, 16), (1, 0)),
    }
    found = {}
    for name, call in calls.items():
        leaves.clear()
        try:
            call().sum().backward()
            found[name] = "none" if all(one.grad is None for one in leaves) else "own"
        except RuntimeError:
            found[name] = "refuses"
    return found


def main() -> None:
    import torch
    import torch_npu

    cases = json.loads(sys.stdin.read())
    print(json.dumps({"takes": takes(torch, cases), "gradients": gradients(torch, torch_npu)}))


if __name__ == "__main__":
    main()
