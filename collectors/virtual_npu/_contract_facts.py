"""What torch_npu offers, as JSON: python -m ascend_perf.collectors.virtual_npu._contract_facts TARGET

Runs in a process that has torch_npu on its path and stand-ins (or CANN) behind it. Nothing here judges: `contract.py`
reads the file. Names are read, nothing of the wheel is called; modules that `import torch_npu` does not load are read
from their source, since some of them change torch when they are imported.
"""

from __future__ import annotations

import ast
import enum
import inspect
import json
import math
import os
import re
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1
"""Of the format. Raise it when a reader of an older file would go wrong."""
ROOT: Final = "torch_npu"
MAX_TEXT: Final = 300
_SAID_DEPRECATED: Final = re.compile(rb"torch_npu\.(\w+) is deprecated[^\x00]{0,200}")
"""How the C++ side says so, each as one text of libtorch_npu.so."""
_REGISTERED: Final = re.compile(r"^AutogradPrivateUse1: registered at (\S+)", re.MULTILINE)

Json = dict[str, Any]


class Gatherer:
    """Every public object once, modules with the objects behind their names."""

    def __init__(self, torch: Any, torch_npu: Any) -> None:
        self._torch = torch
        self._site = Path(torch_npu.__file__).parent
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []
        """Objects must live as long as their ids are used."""
        self.objects: list[Json] = []
        self.modules: dict[str, Json] = {}
        self._trees: dict[str, ast.Module | None] = {}

    def gather(self) -> None:
        """All modules: those that are loaded by what they hold, the others by their source."""
        for name, module in sorted(sys.modules.items()):
            if (name == ROOT or name.startswith(f"{ROOT}.")) and isinstance(module, types.ModuleType):
                self.modules[name] = {"loaded": True, "names": self._names_of(module)}
                if hasattr(type(module), "__getattr__"):  # a module in disguise: PropModule, ConfigModule
                    self.modules[name]["open"] = True
        for path in sorted(self._site.rglob("*.py")):
            parts = path.relative_to(self._site.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if all(part.isidentifier() for part in name.split(".")) and name not in self.modules:
                self._read(name, path)
        for name in sorted(self.modules):
            # Folders without __init__.py are packages, too.
            while (name := name.rpartition(".")[0]) and name not in self.modules:
                self.modules[name] = {"loaded": False, "names": {}}
        for name in sorted(self.modules):
            parent, _, last = name.rpartition(".")
            if parent in self.modules:
                self.modules[parent]["names"].setdefault(last, name)

    def _names_of(self, module: types.ModuleType) -> Json:
        names: Json = {}
        for name in dir(module):
            if _is_special(name) and name != "__version__":
                continue
            try:
                value = getattr(module, name)
            except Exception:  # a lazy name that this machine cannot load: it is there
                names[name] = None
                continue
            names[name] = self._reference(value)
        return names

    def _reference(self, value: object) -> int | str | None:
        """Number of an object, name of a module of ours, None for what belongs to others."""
        if isinstance(value, types.ModuleType):
            # Aliases of modules (torch.npu is torch_npu.npu) have the name of the module itself.
            return value.__name__ if value.__name__.split(".")[0] == ROOT else None
        if id(value) in self._numbers:
            return self._numbers[id(value)]
        if isinstance(value, (str, int, float, bool)) and not isinstance(value, enum.Enum):
            self.objects.append({"kind": "value", "value": value if _is_small(value) else None})
            return len(self.objects) - 1
        if not _is_own(value, self._torch):
            return None
        number = self._numbers[id(value)] = len(self.objects)
        self._kept.append(value)
        entry: Json = {}
        self.objects.append(entry)
        entry |= self._described(value)
        return number

    def _described(self, value: Any) -> Json:
        if isinstance(value, self._torch._ops.OpOverloadPacket):
            return {"kind": "operator", "operator": value.__name__}
        if inspect.isclass(value):
            return self._class(value)
        if callable(value) and hasattr(value, "__name__"):
            told = {"kind": "function", "name": value.__name__, "signature": _signature(value)}
            return told | _some(deprecated=self._deprecation(value))
        return self._instance(value)

    def _class(self, value: type) -> Json:
        members: Json = {}
        for name in dir(value):
            owner = next((part for part in value.__mro__ if name in vars(part)), None)
            if owner is None or _is_special(name):
                continue
            is_own = owner.__module__.split(".")[0] == ROOT
            members[name] = self._member(vars(owner)[name]) if is_own else None
        enumerated = list(value.__members__) if isinstance(value, enum.EnumMeta) else None
        entries = getattr(value, "__members__", None)
        if enumerated is None and isinstance(entries, Mapping):  # pybind11's enumerations
            enumerated = [str(name) for name in entries]
        is_open = any("__getattr__" in vars(part) or "__getattribute__" in vars(part) for part in value.__mro__[:-1])
        attributes = None if is_open else self._attributes(value)
        enters = getattr(value, "__enter__", None)
        return {
            "kind": "class", "name": value.__qualname__, "module": value.__module__, "members": members,
            "signature": _signature(value), "attributes": attributes,
            "enters_itself": enters is not None and self._returns_itself(enters),
            **_some(enumerated=enumerated, deprecated=self._deprecation(value)),
        }  # fmt: skip

    def _member(self, member: object) -> int | None:
        if isinstance(member, (staticmethod, classmethod)):
            inner = member.__func__
            told = {"kind": "function", "name": inner.__name__, "signature": _signature(inner)}
            if isinstance(member, classmethod) and told["signature"]:
                told["signature"] = told["signature"][1:]
            self.objects.append(told | {"is_bound": True})
            return len(self.objects) - 1
        if isinstance(member, types.FunctionType):
            self.objects.append(
                {"kind": "function", "name": member.__name__, "signature": _signature(member), "is_method": True}
                | _some(deprecated=self._deprecation(member))
            )
            return len(self.objects) - 1
        if isinstance(member, (str, int, float, bool)) and not isinstance(member, enum.Enum):
            self.objects.append({"kind": "value", "value": member if _is_small(member) else None})
            return len(self.objects) - 1
        return None

    def _instance(self, value: object) -> Json:
        kind = type(value)
        is_open = any(
            name in vars(part) for part in kind.__mro__[:-1] for name in ("__getattr__", "__getattribute__", "__call__")
        )
        names = None if is_open else [name for name in dir(value) if not _is_special(name)]
        return {"kind": "instance", "names": names}

    def _attributes(self, value: type) -> list[str] | None:
        """What instances get in the methods of their classes (`self.x = ...`); None where a source is not there."""
        found: set[str] = set()
        for part in value.__mro__[:-1]:
            tree = self._definition(part)
            if tree is None:
                if part.__module__.split(".")[0] in (ROOT, "torch"):
                    return None
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    found.add(node.attr)
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
                    return None
        return sorted(found)

    def _returns_itself(self, function: object) -> bool:
        tree = self._definition(function)
        if tree is None:
            return False
        returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
        return bool(returned) and all(isinstance(one, ast.Name) and one.id == "self" for one in returned)

    def _deprecation(self, value: Any) -> str | None:
        """The text with which a function or class calls itself deprecated: by a decorator, or by a warning that it
        gives on every call."""
        marked = vars(value).get("__deprecated__") if hasattr(value, "__dict__") else None
        if isinstance(marked, str):
            return marked[:MAX_TEXT]
        tree = self._definition(value)
        if isinstance(tree, ast.ClassDef):
            tree = next((one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
        return None if tree is None or not isinstance(tree, ast.FunctionDef) else _warned(tree)

    def _definition(self, value: Any) -> ast.FunctionDef | ast.ClassDef | None:
        """The source of a function or class of the wheel."""
        value = inspect.unwrap(value) if callable(value) and not inspect.isclass(value) else value
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not module or not name or "<locals>" in name:
            return None
        if module not in self._trees:
            self._trees[module] = _tree(getattr(sys.modules.get(module), "__file__", None))
        body: Iterable[ast.stmt] = getattr(self._trees[module], "body", ())
        found: ast.FunctionDef | ast.ClassDef | None = None
        for part in name.split("."):
            found = next(
                (one for one in body if isinstance(one, (ast.FunctionDef, ast.ClassDef)) and one.name == part), None
            )
            if found is None:
                return None
            body = found.body
        return found

    def _read(self, name: str, path: Path) -> None:
        """A module that was not loaded, from its source: names, and signatures of functions."""
        tree = _tree(str(path))
        names: Json = {}
        is_open = tree is None
        for node in [] if tree is None else _at_import(tree.body):
            if isinstance(node, ast.FunctionDef):
                is_open |= node.name == "__getattr__"
                told: Json = {"kind": "function", "name": node.name, "signature": None}
                if not node.decorator_list:
                    told["signature"] = _signature_in_source(node.args)
                self.objects.append(told | _some(deprecated=_warned(node)))
                names[node.name] = len(self.objects) - 1
            elif isinstance(node, (ast.ClassDef, ast.AsyncFunctionDef)):
                names[node.name] = None
            elif isinstance(node, ast.ImportFrom):
                is_open |= any(one.name == "*" for one in node.names)
                names |= dict.fromkeys(one.asname or one.name for one in node.names)
            elif isinstance(node, ast.Import):
                names |= dict.fromkeys((one.asname or one.name).split(".")[0] for one in node.names)
            else:
                stored = (one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))
                names |= dict.fromkeys(one.id for one in stored)
        self.modules[name] = {"loaded": False, "names": names, **({"open": True} if is_open else {})}


def _at_import(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    for node in body:
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            for field in ("body", "orelse", "finalbody"):
                yield from _at_import(getattr(node, field, ()))
            for handler in getattr(node, "handlers", ()):
                yield from _at_import(handler.body)
        else:
            yield node


def _tree(path: str | None) -> ast.Module | None:
    if path is None or not path.endswith(".py"):
        return None
    try:
        return ast.parse(Path(path).read_text("utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def _warned(function: ast.FunctionDef) -> str | None:
    """The text of a warning about deprecation that is given on each call, not in a branch."""
    for node in function.body:
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            continue
        call = node.value
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "warn" and call.args):
            continue
        text = call.args[0]
        parts = text.values if isinstance(text, ast.JoinedStr) else [text]
        said = "".join(str(one.value) for one in parts if isinstance(one, ast.Constant))
        others = (*call.args[1:], *(keyword.value for keyword in call.keywords))
        is_marked = any("Deprecat" in ast.unparse(one) for one in others)
        if said and (is_marked or "deprecat" in said.lower()):
            return said[:MAX_TEXT]
    return None


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_small(value: str | int | float) -> bool:
    return len(value) <= MAX_TEXT if isinstance(value, str) else math.isfinite(value)


def _is_own(value: object, torch: Any) -> bool:
    if isinstance(value, torch._ops.OpOverloadPacket):
        return True
    module = getattr(value if callable(value) else type(value), "__module__", None)
    return isinstance(module, str) and module.split(".")[0] == ROOT


def _signature(value: Any) -> list[Json] | None:
    """Parameters of a function, or of a class's constructor (without self); None where it cannot be told."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (ValueError, TypeError):
        return None
    return [
        {
            "name": one.name, "kind": one.kind.name, "has_default": one.default is not one.empty,
            **_some(annotation=_annotation(one.annotation)),
        }
        for one in parameters
    ]  # fmt: skip


def _annotation(value: object) -> str | None:
    if value is inspect.Parameter.empty:
        return None
    text = value if isinstance(value, str) else value.__name__ if isinstance(value, type) else str(value)
    return text.replace("typing.", "")[:MAX_TEXT]


def _signature_in_source(arguments: ast.arguments) -> list[Json]:
    found: list[Json] = []
    plain = [*arguments.posonlyargs, *arguments.args]
    first_default = len(plain) - len(arguments.defaults)
    for index, one in enumerate(plain):
        kind = "POSITIONAL_ONLY" if index < len(arguments.posonlyargs) else "POSITIONAL_OR_KEYWORD"
        found.append({"name": one.arg, "kind": kind, "has_default": index >= first_default})
    if arguments.vararg is not None:
        found.append({"name": arguments.vararg.arg, "kind": "VAR_POSITIONAL", "has_default": False})
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append({"name": one.arg, "kind": "KEYWORD_ONLY", "has_default": default is not None})
    if arguments.kwarg is not None:
        found.append({"name": arguments.kwarg.arg, "kind": "VAR_KEYWORD", "has_default": False})
    return found


def operators(torch: Any) -> Json:
    """Every operator of the namespace npu: its overloads with arguments, and where its gradient comes from."""
    found: Json = {}
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        if not full.startswith("npu::"):
            continue
        name, _, overload = full.removeprefix("npu::").partition(".")
        schema = torch._C._get_schema(f"npu::{name}", overload)
        gradient = "none"
        if has_kernel(full, "CompositeImplicitAutograd"):
            gradient = "composite"
        elif has_kernel(full, "AutogradPrivateUse1"):
            # One registration says only that backward raises: it is told apart by the file that made it.
            place = _REGISTERED.search(torch._C._dispatch_dump(full))
            gradient = "refuses" if place is not None and "AutogradErrorFallback" in place[1] else "own"
        found.setdefault(name, {})[overload] = {
            "gradient": gradient,
            "arguments": [_argument(one) for one in schema.arguments],
            "returns": [str(one.type) for one in schema.returns],
        }
    return found


def _argument(argument: Any) -> Json:
    told = {"name": argument.name, "type": str(argument.type)}
    if argument.kwarg_only:
        told["keyword_only"] = True
    if argument.has_default_value() or argument.is_out:
        told["has_default"] = True
    if argument.N is not None:
        told["fill"] = True  # one number stands for a list of N
    return told


def deprecated_operators(library: Path) -> dict[str, str]:
    """Operators that say on their first call that they are deprecated, from the texts in the library."""
    found = {}
    for match in _SAID_DEPRECATED.finditer(library.read_bytes()):
        found[match[1].decode()] = match[0].decode("utf-8", "replace")[:MAX_TEXT]
    return found


def _some(**values: object) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def facts() -> Json:
    """Everything; see `contract.Facts`."""
    import torch
    import torch_npu

    gatherer = Gatherer(torch, torch_npu)
    gatherer.gather()
    found = operators(torch)
    for name, text in deprecated_operators(Path(torch_npu.__file__).parent / "lib" / "libtorch_npu.so").items():
        for overload in found.get(name, {}).values():
            overload["deprecated"] = text
    return {
        "version": VERSION, "torch": torch.__version__, "torch_npu": torch_npu.__version__,
        "operators": found, "modules": gatherer.modules, "objects": gatherer.objects,
        "on_torch": sorted(name for name in vars(torch) if name in found),
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Writes the file in one step: another process may look for it."""
    target = Path(arguments[0])
    part = target.with_name(f"{target.name}.{os.getpid()}")
    part.write_text(json.dumps(facts(), separators=(",", ":")), "utf-8")
    part.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
