"""Mutants of a Python module: each is the module with one small fault.

A good test suite fails on each mutant. `mutate.py` runs the suite. The kinds of fault are the usual
ones: a different comparison, operator, number or truth value; a negated condition; a missing
statement; a function that returns nothing.

Text is not changed: docstrings, messages, annotations, and the content of `raise`. A fault there
changes no result.
"""

import ast
import copy
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One fault. `number` counts the faults of a module. `function` is the dotted name of the
    function with the fault.
    """

    number: int
    line: int
    function: str
    kind: str
    before: str  # the statement, and what it becomes
    after: str


def mutants(source: str) -> list[Mutant]:
    """Returns each mutant of a module, in the order of its text."""
    finder = _Mutator(None)
    finder.visit(ast.parse(source))
    return finder.mutants


def mutated(source: str, number: int) -> str:
    """Returns the module with fault `number`, without comments. Raises IndexError if there is no
    such fault.
    """
    mutator = _Mutator(number)
    tree = mutator.visit(ast.parse(source))
    if number >= len(mutator.mutants):
        raise IndexError(f"fault {number} of a module with {len(mutator.mutants)}")
    return ast.unparse(ast.fix_missing_locations(tree))


class _Mutator(ast.NodeTransformer):
    """Walks a module. It records each possible fault, and applies fault `wanted`."""

    def __init__(self, wanted: int | None) -> None:
        self.mutants: list[Mutant] = []
        self._wanted = wanted
        self._names: list[str] = []
        self._statement: ast.stmt | None = None

    def _offer(self, node: ast.AST, kind: str, *faults: ast.AST) -> ast.AST:
        chosen = node
        for fault in faults:
            number = len(self.mutants)
            before, after = self._texts(node, fault)
            function = ".".join(self._names)
            self.mutants.append(
                Mutant(number, getattr(node, "lineno", 0), function, kind, before, after)
            )
            if number == self._wanted:
                chosen = ast.copy_location(fault, node)
        return chosen

    def _texts(self, node: ast.AST, fault: ast.AST) -> tuple[str, str]:
        """Returns the code that changes, before and after. For an `if` or a loop it is only the
        condition.
        """
        if isinstance(node, ast.If | ast.While):
            node, fault = node.test, fault.test  # type: ignore[attr-defined]
        return ast.unparse(node), ast.unparse(ast.fix_missing_locations(fault))

    def _with(self, node: ast.AST, **fields: object) -> ast.AST:
        fault = copy.copy(node)
        for name, value in fields.items():
            setattr(fault, name, value)
        return fault

    def _scope(self, node: ast.AST) -> ast.AST:
        self._names.append(node.name)  # type: ignore[attr-defined]
        node.body = [self.visit(statement) for statement in node.body]  # type: ignore[attr-defined]
        if isinstance(node, ast.FunctionDef):
            node.args.defaults = [self.visit(default) for default in node.args.defaults]
        self._names.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._scope(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._scope(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        return node if ast.unparse(node.targets[0]).startswith("__") else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return self._offer(node, "raise left out", ast.Pass())

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant):
            return node
        return self._offer(self.generic_visit(node), "statement left out", ast.Pass())

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        faults: list[ast.AST] = [ast.Pass()]
        if type(node.op) in OPERATORS:
            faults.append(self._with(node, op=OPERATORS[type(node.op)]()))
        return self._offer(node, "assignment", *faults)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is None or (
            isinstance(node.value, ast.Constant) and node.value.value is None
        ):
            return node
        return self._offer(node, "nothing returned", ast.Return(ast.Constant(None)))

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return node
        self.generic_visit(node)
        return self._offer(
            node, "condition negated", self._with(node, test=ast.UnaryOp(ast.Not(), node.test))
        )

    visit_While = visit_If  # type: ignore[assignment]

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return self._offer(
            node, "condition negated", self._with(node, body=node.orelse, orelse=node.body)
        )

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        faults = [
            self._with(node, ops=[*node.ops[:place], other(), *node.ops[place + 1 :]])
            for place, operator in enumerate(node.ops)
            for other in COMPARISONS[type(operator)]
        ]
        return self._offer(node, "comparison", *faults)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if (
            type(node.op) not in OPERATORS
            or isinstance(node.left, ast.JoinedStr)
            or isinstance(node.right, ast.JoinedStr)
        ):
            return node
        return self._offer(node, "operator", self._with(node, op=OPERATORS[type(node.op)]()))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return self._offer(node, "and/or", self._with(node, op=other))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return (
            self._offer(node, "sign", node.operand)
            if isinstance(node.op, ast.Not | ast.USub | ast.Invert)
            else node
        )

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self.visit(argument) for argument in node.args]
        for keyword in node.keywords:
            if keyword.arg != "strict":  # of zip: a guard of what cannot happen
                keyword.value = self.visit(keyword.value)
        node.func = self.visit(node.func)
        name = ast.unparse(node.func)
        if name in FUNCTIONS:
            return self._offer(
                node, "function", self._with(node, func=ast.Name(FUNCTIONS[name], ast.Load()))
            )
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if isinstance(value, bool):
            return self._offer(node, "truth value", ast.Constant(not value))
        if isinstance(value, int):
            return self._offer(node, "number", ast.Constant(value + 1))
        if isinstance(value, float):
            return self._offer(node, "number", ast.Constant(value * 2 or 1.0))
        return node
