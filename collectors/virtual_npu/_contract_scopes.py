"""Which name of a source file stands for what: `api = torch_npu.npu` makes `api.foo` a use of `torch_npu.npu.foo`.

A file is parsed, never executed. Names are followed through imports, assignments, attributes of `self`, functions of
the same file that return a module, and `with ... as`; `x()` is written as `path()`, an instance where path is a class.
Where a name can be two things, nothing is said of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ascend_perf.collectors.virtual_npu._contract_env import (
    NOTHING,
    ClassEnv,
    Env,
    Names,
    Use,
    copied,
    join,
    merged,
)

PASSES: Final = 4
"""Of the whole file: what functions return is known after the first, attributes of `self` made of that after the
second, and what returns those after the third."""
MAX_PATH: Final = 300
_WITHOUT_GRADIENT: Final = frozenset({
    "torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.autograd.inference_mode",
})  # fmt: skip
_FORGIVING: Final = frozenset({"AttributeError", "ImportError", "ModuleNotFoundError", "Exception", "BaseException"})

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A function whose body is looked at when all that lies around it has been."""

    function: Function
    outer: Env
    klass: str
    """The class whose instance `self_name` is; empty: of none."""
    self_name: str
    is_method: bool
    without_gradient: bool
    is_custom: bool


def names_of(tree: ast.Module) -> Names:
    """Every use of a path in a file, in the order of its lines.

    Raises:
        RecursionError: the file is nested too deeply.
    """
    walker = _Walker()
    for index in range(PASSES):
        walker.begin(report=index == PASSES - 1)
        walker.module(tree)
    uses = sorted(walker.uses, key=lambda use: (getattr(use.node, "lineno", 0), getattr(use.node, "col_offset", 0)))
    only = {name for name, places in walker.callers.items() if places and all(places)}
    return Names(
        uses=uses, paths=walker.paths, asked=frozenset(walker.asked),
        called_only_in_functions_with_gradient=frozenset(only),
    )  # fmt: skip


class _Walker:
    def __init__(self) -> None:
        self.uses: list[Use] = []
        self.paths: dict[int, str] = {}
        self.asked: set[str] = set()
        self.callers: dict[str, list[bool]] = {}
        """Function of the file -> for each call of it, whether a torch.autograd.Function makes it."""
        self._attributes: dict[str, Env] = {}
        """Class of the file -> attributes of its instances, as the pass before found them."""
        self._found_attributes: dict[str, Env] = {}
        self._bases: dict[str, list[str]] = {}
        self._returns: dict[str, str | None] = {}
        """Function of the file (`name` or `Class.name`) -> what it returns."""
        self._globals: Env = {}
        """What functions bind to names that they declare global, as the pass before found them."""
        self._found_globals: Env = {}
        self._stored: set[str] = set()
        """Paths that the file assigns to: `torch.npu.own = ...`."""

    def begin(self, *, report: bool) -> None:
        """Start over with what is known of attributes, returned values and global names."""
        self._report = report
        self._attributes, self._found_attributes = self._found_attributes, {}
        self._globals, self._found_globals = self._found_globals, {}
        self.paths = {}
        self.uses, self.callers = [], {}
        self._later: list[_Pending] = []
        self._class = self._self = self._function = ""
        self._in_class_body = self._forgiven = self._no_gradient = self._custom = False
        self._found_returns: list[str | None] | None = None
        self._declared: set[str] = set()

    def module(self, tree: ast.Module) -> None:
        """Look at all of a file once."""
        self._block(tree.body, {})
        while self._later:
            self._run(self._later.pop(0))

    # Functions and classes

    def _run(self, one: _Pending) -> None:
        function = one.function
        env = dict(one.outer)
        for name, value in self._globals.items():
            env[name] = merged(env.get(name, NOTHING), value)
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        for argument in (*positional, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
            if argument is not None:
                env[argument.arg] = None
        self._class, self._self = one.klass, one.self_name
        if one.is_method:
            self._self = positional[0].arg if positional else ""
        self._no_gradient, self._custom, self._declared = one.without_gradient, one.is_custom, set()
        if isinstance(function, ast.Lambda):
            self._value(function.body, env)
            return
        self._function, self._found_returns = function.name, []
        self._block(function.body, env)
        found = set(self._found_returns) - {NOTHING}
        name = f"{one.klass}.{function.name}" if one.is_method else function.name
        self._returns[name] = found.pop() if len(found) == 1 else None
        self._found_returns = None
        for name in self._declared:
            self._found_globals[name] = merged(self._found_globals.get(name, NOTHING), env.get(name, NOTHING))

    def _defer(self, function: Function, env: Env, no_gradient: bool) -> None:
        # Methods do not see the names of their class, only what lies around it.
        outer = env.outer if isinstance(env, ClassEnv) else env
        self._later.append(_Pending(
            function=function, outer=outer, klass=self._class, self_name=self._self,
            is_method=self._in_class_body and not isinstance(function, ast.Lambda),
            without_gradient=no_gradient, is_custom=self._custom,
        ))  # fmt: skip

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, env: Env) -> None:
        no_gradient = self._no_gradient
        for decorator in node.decorator_list:
            path = self._value(decorator, env)
            no_gradient |= (path or "").removesuffix("()") in _WITHOUT_GRADIENT
        for default in (*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)):
            self._value(default, env)
        self._defer(node, env, no_gradient)
        env[node.name] = f"<{self._class}.{node.name}>" if self._in_class_body else f"<{node.name}>"

    def _class_of(self, node: ast.ClassDef, env: Env) -> None:
        paths = [self._value(base, env) for base in node.bases]
        for keyword in node.keywords:
            self._value(keyword.value, env)
        for decorator in node.decorator_list:
            self._value(decorator, env)
        self._bases[node.name] = [path[1:-1] for path in paths if path and path.startswith("<")]
        is_custom = any(path in ("torch.autograd.Function", "torch.autograd.function.Function") for path in paths)
        before = self._class, self._custom, self._in_class_body
        self._class, self._custom, self._in_class_body = node.name, is_custom or self._custom, True
        body = ClassEnv(env)
        self._block(node.body, body)
        own = self._found_attributes.setdefault(node.name, {})
        for name, value in body.own().items():
            own[name] = merged(own.get(name, NOTHING), value)
        self._class, self._custom, self._in_class_body = before
        env[node.name] = f"<{node.name}>"

    # Statements

    def _block(self, body: Sequence[ast.stmt], env: Env) -> None:
        for node in body:
            self._statement(node, env)

    def _statement(self, node: ast.stmt, env: Env) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._define(node, env)
        elif isinstance(node, ast.ClassDef):
            self._class_of(node, env)
        elif isinstance(node, ast.Import):
            for one in node.names:
                self._use("import", one.name, node)
                env[one.asname or one.name.split(".")[0]] = one.name if one.asname else one.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                path = None if node.level or node.module is None else f"{node.module}.{one.name}"
                if path is not None and one.name != "*":
                    self._use("import", path, node)
                if one.name != "*":
                    env[one.asname or one.name] = path
        elif isinstance(node, (ast.If, ast.While)):
            self._value(node.test, env)
            self._branches(env, node.body, node.orelse)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._value(node.iter, env)
            self._bind(node.target, None, env)
            self._branches(env, node.body, node.orelse)
        elif isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            self._try(node, env)  # type: ignore[arg-type]  # TryStar has the same fields
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self._with(node, env)
        elif isinstance(node, ast.Match):
            self._value(node.subject, env)
            for case in node.cases:
                for part in ast.walk(case.pattern):
                    name = getattr(part, "name", None)
                    if isinstance(name, str):
                        env[name] = None
            self._branches(env, *(case.body for case in node.cases))
        else:
            self._simple(node, env)

    def _simple(self, node: ast.stmt, env: Env) -> None:
        if isinstance(node, ast.Global):
            self._declared.update(node.names)
        elif isinstance(node, ast.Assign):
            value = self._value(node.value, env)
            for target in node.targets:
                self._assign(target, node.value, value, env)
        elif isinstance(node, ast.AnnAssign):
            # The annotation is not looked at: it may be a text, and is not run.
            if node.value is not None:
                self._assign(node.target, node.value, self._value(node.value, env), env)
        elif isinstance(node, ast.AugAssign):
            self._value(node.value, env)
            self._bind(node.target, None, env)
        elif isinstance(node, ast.Return):
            value = NOTHING if node.value is None else self._value(node.value, env)
            if self._found_returns is not None:
                self._found_returns.append(value)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self._bind(target, None, env)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self._value(child, env)

    def _assign(self, target: ast.expr, source: ast.expr, value: str | None, env: Env) -> None:
        # All values are known before the first is bound: a, b = b, a.
        for one, what in list(self._pairs(target, source, value, env)):
            self._bind(one, what, env)

    def _pairs(
        self, target: ast.expr, source: ast.expr, value: str | None, env: Env
    ) -> Iterator[tuple[ast.expr, str | None]]:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = source.elts if isinstance(source, (ast.Tuple, ast.List)) else []
            if len(parts) == len(target.elts) and not any(isinstance(one, ast.Starred) for one in target.elts):
                for one, part in zip(target.elts, parts, strict=True):
                    yield from self._pairs(one, part, self._quietly(part, env), env)
                return
        yield target, value

    def _bind(self, target: ast.expr, value: str | None, env: Env) -> None:
        if isinstance(target, ast.Name):
            env[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for one in target.elts:
                self._bind(one, None, env)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, None, env)
        elif isinstance(target, ast.Attribute):
            if isinstance(target.value, ast.Name) and target.value.id == self._self and self._class:
                own = self._found_attributes.setdefault(self._class, {})
                own[target.attr] = merged(own.get(target.attr, NOTHING), value)
            else:
                base = self._value(target.value, env)
                self._stored.add(f"{base}.{target.attr}")
        elif isinstance(target, ast.Subscript):
            self._value(target.value, env)
            self._value(target.slice, env)

    def _branches(self, env: Env, *bodies: Sequence[ast.stmt]) -> None:
        """Each body from the same start; afterwards a name is what all of them say."""
        ends = []
        for body in bodies:
            own = copied(env)
            self._block(body, own)
            if not (body and isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))):
                ends.append(own)
        join(env, ends)

    def _try(self, node: ast.Try, env: Env) -> None:
        before = self._forgiven
        self._forgiven |= any(_catches_missing(handler) for handler in node.handlers)
        own = copied(env)
        self._block(node.body, own)
        self._forgiven = before
        ends = []
        for handler in node.handlers:
            mine = copied(own)
            if handler.type is not None:
                self._value(handler.type, mine)
            if handler.name:
                mine[handler.name] = None
            self._block(handler.body, mine)
            if not (handler.body and isinstance(handler.body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))):
                ends.append(mine)
        self._block(node.orelse, own)
        join(env, [own, *ends])
        self._block(node.finalbody, env)

    def _with(self, node: ast.With | ast.AsyncWith, env: Env) -> None:
        before = self._no_gradient
        for item in node.items:
            value = self._value(item.context_expr, env)
            self._no_gradient |= (value or "").removesuffix("()") in _WITHOUT_GRADIENT
            if item.optional_vars is not None:
                self._bind(item.optional_vars, None if value is None else f"{value}.__enter__()", env)
        self._block(node.body, env)
        self._no_gradient = before

    # Expressions

    def _quietly(self, node: ast.expr, env: Env) -> str | None:
        """The value of what has been looked at already."""
        before, self._report = self._report, False
        value = self._value(node, env)
        self._report = before
        return value

    def _value(self, node: ast.expr, env: Env, *, is_callee: bool = False) -> str | None:
        """The path that an expression stands for; uses in it are noted on the way."""
        path = self._path(node, env, is_callee=is_callee)
        if path is not None and path != NOTHING:
            self.paths[id(node)] = path
        return path

    def _path(self, node: ast.expr, env: Env, *, is_callee: bool) -> str | None:
        if isinstance(node, ast.Name):
            value = env.get(node.id)
            if isinstance(node.ctx, ast.Load) and not is_callee:
                self._use("name", value, node)
            return value
        if isinstance(node, ast.Attribute):
            path = self._attribute(node, env)
            if not is_callee:
                self._use("name", path, node)
            return path
        if isinstance(node, ast.Call):
            return self._call(node, env)
        if isinstance(node, ast.Constant):
            return NOTHING if node.value is None else None
        if isinstance(node, ast.IfExp):
            self._value(node.test, env)
            return merged(self._value(node.body, env), self._value(node.orelse, env))
        if isinstance(node, ast.BoolOp):
            values = [self._value(one, env) for one in node.values]
            whole = values[0]
            for one in values[1:]:
                whole = merged(whole, one)
            return whole if isinstance(node.op, ast.Or) else None
        if isinstance(node, ast.NamedExpr):
            value = self._value(node.value, env)
            self._bind(node.target, value, env)
            return value
        if isinstance(node, ast.Lambda):
            self._defer(node, env, self._no_gradient)
            return None
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            self._comprehension(node, env)
            return None
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._value(child, env)
        return None

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, env: Env) -> None:
        own = copied(env)
        for part in node.generators:
            self._value(part.iter, own)
            self._bind(part.target, None, own)
            for test in part.ifs:
                self._value(test, own)
        if isinstance(node, ast.DictComp):
            self._value(node.key, own)
            self._value(node.value, own)
        else:
            self._value(node.elt, own)

    def _attribute(self, node: ast.Attribute, env: Env) -> str | None:
        if isinstance(node.value, ast.Name) and node.value.id == self._self and self._class:
            return self._of_self(self._class, node.attr)
        # What stands before the last dot is part of this use, not one of its own.
        base = self._value(node.value, env, is_callee=True)
        if base is None or base == NOTHING or base.startswith("<"):
            return None
        return f"{base}.{node.attr}" if len(base) < MAX_PATH else None

    def _of_self(self, klass: str, name: str, depth: int = 0) -> str | None:
        if name in self._attributes.get(klass, {}):
            value = self._attributes[klass][name]
            return None if value == NOTHING else value
        for base in self._bases.get(klass, []) if depth < 10 else []:
            if (value := self._of_self(base, name, depth + 1)) is not None:
                return value
        return f"<{klass}.{name}>" if f"{klass}.{name}" in self._returns else None

    def _call(self, node: ast.Call, env: Env) -> str | None:
        path = self._value(node.func, env, is_callee=True)
        for argument in node.args:
            self._value(argument.value if isinstance(argument, ast.Starred) else argument, env)
        for keyword in node.keywords:
            self._value(keyword.value, env)
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr") and path is None:
            return self._asked_for(node, env)
        if path is None or path == NOTHING:
            return None
        if path.startswith("<"):
            name = path[1:-1]
            self.callers.setdefault(name.split(".")[-1], []).append(self._custom)
            return self._returns.get(name)
        if path in ("importlib.import_module", "__import__") or path == "importlib.__import__":
            return self._imported(node)
        if path == "functools.partial" and node.args:
            inner = self._quietly(node.args[0], env)
            if inner and inner != NOTHING and not inner.startswith("<"):
                self._use("call", inner, node, call=node, first_argument=1, is_partial=True)
            return None
        self._use("call", path, node.func, call=node)
        return f"{path}()" if len(path) < MAX_PATH else None

    def _asked_for(self, node: ast.Call, env: Env) -> str | None:
        assert isinstance(node.func, ast.Name)
        name = node.args[1] if len(node.args) > 1 else None
        if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
            return None
        base = self._quietly(node.args[0], env)
        if node.func.id == "hasattr" or len(node.args) > 2:
            self.asked.add(name.value)
        if node.func.id == "hasattr" or base is None or base == NOTHING or base.startswith("<"):
            return None
        path = f"{base}.{name.value}"
        self._use("name", path, node)
        return path

    def _imported(self, node: ast.Call) -> str | None:
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and len(node.args) == 1:
            self._use("import", first.value, node)
            return first.value
        return None

    def _use(
        self, kind: Literal["name", "call", "import"], path: str | None, node: ast.expr | ast.stmt,
        call: ast.Call | None = None, first_argument: int = 0, is_partial: bool = False,
    ) -> None:  # fmt: skip
        if not self._report or path is None or path in self._stored:
            return
        if path.split(".")[0].removesuffix("()") not in ("torch", "torch_npu"):
            return
        self.uses.append(Use(
            kind=kind, path=path, node=node, call=call, first_argument=first_argument, is_partial=is_partial,
            is_forgiven=self._forgiven, without_gradient=self._no_gradient or self._custom, function=self._function,
        ))  # fmt: skip


def _catches_missing(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    parts = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {one.id if isinstance(one, ast.Name) else getattr(one, "attr", "") for one in parts}
    return bool(names & _FORGIVING)
