"""Does what a line of the training loop computes flow into training, by its source text?

Within the function that holds the line, names that its statement assigns are followed through later statements, around
the loop once more, until one of them is used by a line that autograd ran back through or that steps the optimizer.

    stats = grad_norms(model)          feeds nothing: only print uses it
    print(stats)
    scale = 1 / (1 + stats.mean())     feeds training: the next line uses it, and has a backward
    loss = scale * criterion(model(x), y)

True or False where the source shows it, None where it cannot: no source text, the line lies in a function without
training lines, or its value leaves the function.
"""

import ast
from collections.abc import Iterator
from functools import lru_cache

from stepscope.analyze.owner_lines import RankLines
from stepscope.analyze.stacks import Line
from stepscope.run.source_text import SourceText

# methods through which a value gets into the object they are called on
_TAKES = frozenset(("add", "append", "appendleft", "copy_", "extend", "insert", "push", "put", "setdefault", "update"))
_Function = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


def feeds_training(source: SourceText, known: RankLines, line: Line) -> bool | None:
    """Return whether what a line computes is used by a line of forward, backward or optimizer; None where unknown."""
    file, number = line
    lines = source.lines(file)
    tree = _parsed("\n".join(lines)) if lines is not None else None
    function = _function_at(tree, number) if tree is not None else None
    if function is None:
        return None
    trains = {at for (name, at), work in known.lines.items() if name == file and (work.has_backward or work.optimizes)}
    return _flows(function, number, trains)


def skipped_line(source: SourceText, line: Line, seen: set[int]) -> int | None:
    """Return the first line of the `if` block below a line of which nothing was `seen` at work: what ran there in other
    steps; of several the one for every Nth step (`if step % 100 == 0:`). None where the source shows none.
    """
    lines = source.lines(line[0])
    tree = _parsed("\n".join(lines)) if lines is not None else None
    function = _function_at(tree, line[1]) if tree is not None else None
    skipped = []
    for statement, parts in _statements(function) if function is not None else ():
        inside = range(statement.lineno + 1, (statement.end_lineno or 0) + 1)
        if statement.lineno > line[1] and isinstance(statement, ast.If) and seen.isdisjoint(inside):
            every = any(isinstance(n, ast.Mod) for part in parts for n in ast.walk(part))
            skipped.append((not every, statement.lineno, statement))
        elif statement.lineno > line[1] and statement.lineno in seen:
            break
    if not skipped:
        return None
    body: ast.stmt = min(skipped, key=lambda one: one[:2])[2]
    while isinstance(body, ast.If | ast.With | ast.For):
        body = body.body[0]
    return body.lineno


@lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _function_at(tree: ast.Module, number: int) -> _Function | None:
    """Return the innermost function around a line, the module where there is none."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    around = [f for f in functions if f.lineno <= number <= (f.end_lineno or 0)]
    return max(around, key=lambda f: f.lineno, default=tree)


def _flows(function: _Function, number: int, trains: set[int]) -> bool | None:
    statements = list(_statements(function))
    mine = [s for s, parts in statements if _covers(parts, number)]
    if not any(_covers(parts, at) for at in trains for _, parts in statements) or not mine:
        return None
    tainted, escapes = _assigned(mine[-1]), isinstance(mine[-1], ast.Return)
    for statement, parts in statements * 2:  # around the loop once more
        if statement is mine[-1] or not any(_uses(part) & tainted for part in parts):
            continue
        if any(_covers(parts, at) for at in trains):
            return True
        if isinstance(statement, ast.Return) or any(isinstance(n, ast.Yield) for part in parts for n in ast.walk(part)):
            escapes = True
        tainted |= _assigned(statement)
    leaves = {name for name in tainted if name.startswith("self.")}
    return None if escapes or leaves or not tainted.isdisjoint(_declared_outside(function)) else False


def _statements(node: ast.AST) -> Iterator[tuple[ast.stmt, list[ast.AST]]]:
    """Yield each statement of a function with its own expressions, those of statements inside it apart."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(child, ast.stmt):
            parts = [
                c
                for c in ast.iter_child_nodes(child)
                if not isinstance(c, ast.stmt | ast.ExceptHandler | ast.match_case)
            ]
            yield child, parts
            yield from _statements(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from _statements(child)


def _covers(parts: list[ast.AST], number: int) -> bool:
    spans = [(p.lineno, p.end_lineno) for part in parts for p in ast.walk(part) if isinstance(p, ast.expr)]
    return any(start <= number <= (end or start) for start, end in spans)


def _assigned(statement: ast.stmt) -> set[str]:
    """Return the names that a statement gives a value to, or puts a value into."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        targets = [statement.target]
    elif isinstance(statement, ast.With | ast.AsyncWith):
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        targets = [called.value] if isinstance(called, ast.Attribute) and called.attr in _TAKES else []
    own = ast.walk(statement) if isinstance(statement, ast.Assign | ast.Expr) else ()
    named = {node.target.id for node in own if isinstance(node, ast.NamedExpr)}
    return named.union(*(_names(target) for target in targets))


def _names(target: ast.expr) -> set[str]:
    if isinstance(target, ast.Tuple | ast.List):
        return set[str]().union(*(_names(one) for one in target.elts))
    if isinstance(target, ast.Starred | ast.Subscript):
        return _names(target.value)
    if isinstance(target, ast.Attribute):
        return (
            {f"self.{target.attr}"}
            if isinstance(target.value, ast.Name) and target.value.id == "self"
            else _names(target.value)
        )
    return {target.id} if isinstance(target, ast.Name) else set()


def _uses(part: ast.AST) -> set[str]:
    """Return the names that an expression reads."""
    found = set()
    for node in ast.walk(part):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            found.add(f"self.{node.attr}")
    return found


def _declared_outside(function: _Function) -> set[str]:
    return {name for node in ast.walk(function) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
