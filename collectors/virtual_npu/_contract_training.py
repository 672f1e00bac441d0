"""Whether a file trains, as far as its text tells, and operators whose missing gradient does not matter."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

NO_MATTER: Final = re.compile(
    r".*_(?:backward|grad)(?:_v\d+)?|.*_backward_.*|.*_grad_.*|.*_(?:worker|scheduler)(?:_.*)?"
    r"|(?:npu_)?(?:apply_adam|apply_adam_w|bert_apply_adam|.*float_status|.*nms.*|.*_(?:encode|decode)|prefetch"
    r"|change_data_ptr|one_hot|iou|ptiou|rotated_(?:iou|overlaps)|sub_sample|random_choice_with_mask"
    r"|grid_assign_positive|anchor_response_flags|sign_bits_(?:un)?pack|convert_weight_to_int4pack"
    r"|weight_quant_preprocess|trans_quant_param|top_k_top_p.*|dropout_gen_mask|batch_nms|advance_step_flashattn"
    r"|moe_compute_expert_tokens|moe_update_expert|hans_.*|silent_check.*|format_cast_|get_npu_format|get_storage_size"
    r"|copy_memory_|empty_with_.*|unsafe_empty_.*|obfuscation_.*|super_kernel_.*|set_op_timeout_ms|.*npugraph_tensor"
    r"|ifmr|.*quant.*cache.*|.*pa_cache.*|.*kv_cache.*|scatter_update_?|one_|sim_exponential_|view_copy)"
)
"""Operators that are gradients themselves, optimizers, or give indices, boxes and flags: nobody derives them."""


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a file is held for training: what stands there, and its line."""

    text: str
    line: int


def reason_of(tree: ast.Module, paths: Mapping[int, str]) -> Reason | None:
    """The strongest sign of training in a file: backward() before an optimizer, before requires_grad, before train().

    Args:
        paths: id of an expression -> the dotted path that it stands for.
    """
    best: tuple[int, int, str] | None = None
    for node in ast.walk(tree):
        sign = _sign(node, paths)
        if sign is not None and (best is None or (sign[0], getattr(node, "lineno", 0)) < best[:2]):
            best = (sign[0], getattr(node, "lineno", 0), sign[1])
    return None if best is None else Reason(text=best[2], line=best[1])


def _sign(node: ast.AST, paths: Mapping[int, str]) -> tuple[int, str] | None:
    if not isinstance(node, ast.Call):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    path = paths.get(id(node.func), "")
    if name == "backward" and isinstance(node.func, ast.Attribute) and not _is_super(node.func.value):
        return 0, f"{ast.unparse(node.func)[-60:]}()"
    if path in ("torch.autograd.grad", "torch.autograd.backward"):
        return 0, f"{path}()"
    if path.startswith(("torch.optim.", "torch_npu.optim.")) and name[:1].isupper():
        return 1, f"{path}(...)"
    if name == "step" and isinstance(node.func, ast.Attribute) and "optim" in ast.unparse(node.func.value).lower():
        return 1, f"{ast.unparse(node.func)[-60:]}()"
    if name == "requires_grad_" and not _is(node.args[:1], False):
        return 2, "requires_grad_()"
    if any(one.arg == "requires_grad" and _is([one.value], True) for one in node.keywords):
        return 2, "requires_grad=True"
    is_alone = isinstance(node.func, ast.Attribute) and len(node.args) <= 1 and not node.keywords
    if name == "train" and is_alone and (not node.args or _is(node.args, True)):
        return 3, f"{ast.unparse(node.func)[-60:]}()"
    return None


def _is(nodes: list[Any], value: bool) -> bool:
    return bool(nodes) and isinstance(nodes[0], ast.Constant) and nodes[0].value is value


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
