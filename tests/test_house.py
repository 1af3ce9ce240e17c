"""The rules of the house, proved on the source itself. Each failure names the file, the line and the rule."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    path: ast.parse(path.read_text(), str(path)) for path in sorted([*ROOT.glob("*.py"), *ROOT.glob("[!.]*/**/*.py")])
}

EDGES = {"hub.py", "store.py", "__main__.py"}  # where planner meets the world
NETWORK = {"monitor/scrape.py", "monitor/prometheus.py", "planner/hub.py"}
SOCKETS = (
    "socket", "socketserver", "ssl", "asyncio", "http.client", "urllib.request", "urllib3", "requests", "httpx",
    "aiohttp", "prometheus_api_client", "huggingface_hub",
)  # fmt: skip
ENGINE = ("torch", "vllm", "transformers")
ENGINE_SIDE = {
    "monitor/engine_side.py",
    "scripts/measure_device.py",
}  # run by the engine's interpreter, imported by nobody
PAGE_LINES, MODULE_LINES = 90, 450


def within(*places: str) -> Iterator[tuple[Path, ast.Module]]:
    """The parsed files of these folders, or these files."""
    for path, tree in SOURCES.items():
        if any(path.relative_to(ROOT).is_relative_to(place) for place in places):
            yield path, tree


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported: `from urllib import request` is urllib.request."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def imports_any(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def report(rule: str, breaches: list[str]) -> None:
    if breaches:
        pytest.fail("\n".join([f"{rule}, but:", *breaches]), pytrace=False)


# Layers


def test_planner_needs_only_the_standard_library_and_numpy() -> None:
    allowed = (*sys.stdlib_module_names, "numpy", "planner")
    report(
        "planner/ imports the standard library and numpy, its edges excepted",
        [
            f"{name_of(path)}:{line}: {name}"
            for path, tree in within("planner")
            for line, name in imports(tree)
            if path.name not in EDGES and not imports_any(name, allowed)
        ],
    )


def test_planner_has_no_clock() -> None:
    report(
        "planner/ reads no clock, its edges excepted: the same inputs give the same plan",
        [
            f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}"
            for path, tree in within("planner")
            for node in ast.walk(tree)
            if path.name not in EDGES
            and isinstance(node, ast.Attribute)
            and (ast.unparse(node.value) == "time" or node.attr in {"now", "today", "utcnow"})
        ],
    )


def test_only_the_edges_open_sockets() -> None:
    report(
        f"only {', '.join(sorted(NETWORK))} open sockets",
        [
            f"{name_of(path)}:{line}: {name}"
            for path, tree in within("planner", "monitor", "pages", "app.py")
            for line, name in imports(tree)
            if name_of(path) not in NETWORK and imports_any(name, SOCKETS)
        ],
    )


def test_arrows_point_one_way() -> None:
    """planner knows nobody, monitor knows planner, and only pages know Streamlit."""
    forbidden = {"planner": ("monitor", "pages", "app", "streamlit"), "monitor": ("pages", "app", "streamlit")}
    report(
        "what is shown may import what is known, never the other way",
        [
            f"{name_of(path)}:{line}: {name}"
            for layer, above in forbidden.items()
            for path, tree in within(layer)
            for line, name in imports(tree)
            if imports_any(name, above)
        ],
    )


def test_the_dashboard_never_imports_an_engine() -> None:
    report(
        "torch, vllm and transformers live in the engine's interpreter",
        [
            f"{name_of(path)}:{line}: {name}"
            for path, tree in within("app.py", "pages", "planner", "monitor", "scripts")
            for line, name in imports(tree)
            if imports_any(name, (*ENGINE, "monitor.engine_side", "scripts.measure_device"))
            if name_of(path) not in ENGINE_SIDE
        ],
    )


def test_nothing_heavy_is_loaded_by_planner_and_monitor() -> None:
    """As above, but for what imports import: proved in a fresh interpreter."""
    heavy = {*ENGINE, "streamlit", "pandas", "plotly", "matplotlib"}
    code = f"import sys, planner.plan, monitor.collector; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report("planner.plan and monitor.collector load nothing heavy", done.stdout.split())


# Pages


def is_text(node: ast.expr) -> bool:
    """Plainly a string or a list: `+` and `%` on it are not arithmetic."""
    return isinstance(node, ast.JoinedStr | ast.List) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def arithmetic(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and code of what computes; a chart may divide by the unit of its axis."""
    free = (ast.BitOr, ast.BitAnd, ast.Div) if path.name == "_charts.py" else (ast.BitOr, ast.BitAnd)
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(left, op, right):
                computes = not (isinstance(op, free) or is_text(left) or is_text(right))
            case ast.AugAssign(_, op, value):
                computes = not (isinstance(op, free) or is_text(value))
            case ast.Call(ast.Name(name)):
                computes = name in {"sum", "round", "pow", "divmod"}
            case _:
                continue
        if computes:
            yield node.lineno, ast.unparse(node)


def test_pages_hold_no_arithmetic() -> None:
    report(
        "pages show values that planner and monitor have computed",
        [
            f"{name_of(path)}:{line}: {code}"
            for path, tree in within("pages", "app.py")
            for line, code in arithmetic(path, tree)
        ],
    )


def test_files_stay_short() -> None:
    def limit(path: Path) -> int:
        return PAGE_LINES if path.parent.name == "pages" and not path.name.startswith("_") else MODULE_LINES

    lengths = {path: len(path.read_text().splitlines()) for path in SOURCES}
    report(
        f"a page has at most {PAGE_LINES} lines, any other file {MODULE_LINES}",
        [f"{name_of(path)}:{lines}: too long" for path, lines in lengths.items() if lines > limit(path)],
    )


# Words and units

METRIC_NAME = re.compile(r"vllm:[a-z]|ray_vllm_")


def test_metric_names_are_written_once() -> None:
    report(
        "metric names are written in monitor/metrics.py only",
        [
            f"{name_of(path)}:{node.lineno}: {METRIC_NAME.search(node.value).group()}…"
            for path, tree in within("app.py", "pages", "planner", "monitor", "scripts")
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and METRIC_NAME.search(node.value)
            if name_of(path) != "monitor/metrics.py"
        ],
    )


def is_number(annotation: ast.expr) -> bool:
    """Whether a field holds a number: int, float, one or None, or several (a mapping counts by its values)."""
    match annotation:
        case ast.Constant(str(text)):
            return is_number(ast.parse(text, mode="eval").body)
        case ast.Name(name):
            return name in {"int", "float"}
        case ast.BinOp(left, ast.BitOr(), right):
            members = [side for side in (left, right) if not (isinstance(side, ast.Constant) and side.value is None)]
            return all(is_number(member) for member in members)
        case ast.Subscript(ast.Name("Mapping" | "dict"), ast.Tuple([_, value])):
            return is_number(value)
        case ast.Subscript(ast.Name("tuple" | "list" | "Sequence"), ast.Tuple(members)):
            return any(is_number(member) for member in members)
        case ast.Subscript(ast.Name("tuple" | "list" | "Sequence"), member):
            return is_number(member)
        case _:
            return "ndarray" in ast.unparse(annotation) or "NDArray" in ast.unparse(annotation)


def domain_types(tree: ast.Module) -> Iterator[ast.ClassDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            made_by = " ".join(ast.unparse(part) for part in [*node.decorator_list, *node.bases])
            if re.search(r"\b(dataclass|NamedTuple)\b", made_by):
                yield node


def states_unit(docstring: str, name: str) -> bool:
    """Whether a line begins with the name (alone, or in a list of names) and ends in its [unit]."""
    return re.search(rf"^ *(\w+, )*{name}(, \w+)* .*\[[^\]]+\]\.?$", docstring, re.MULTILINE) is not None


def test_every_number_states_its_unit() -> None:
    report(
        "each numeric field of a domain type has a line `name  meaning  [unit]` in the docstring of its class",
        [
            f"{name_of(path)}:{field.lineno}: {kind.name}.{field.target.id}"
            for path, tree in within("planner", "monitor")
            for kind in domain_types(tree)
            for field in kind.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_number(field.annotation)
            if not states_unit(ast.get_docstring(kind) or "", field.target.id)
        ],
    )


VAGUE = {"utils", "util", "common", "core", "helper", "helpers", "manager"}


def words(name: str) -> set[str]:
    """
    >>> sorted(words("KvCacheManager")), sorted(words("_parse_utils"))
    (['cache', 'kv', 'manager'], ['parse', 'utils'])
    """
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}


def test_names_say_what_they_return() -> None:
    breaches = [f"{name_of(path)}:1: file {path.stem}" for path in SOURCES if words(path.stem) & VAGUE]
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                verb = re.match(r"_*(get|calculate|compute)_", node.name)
                if verb or words(node.name) & VAGUE:
                    breaches.append(f"{name_of(path)}:{node.lineno}: {node.name}")
    report(
        "names are of what is returned: no get_, calculate_, compute_, utils, common, core, helper, manager", breaches
    )


# Texts

TEXTS = {".py", ".md", ".toml", ".txt", ".json", ".jsonl", ".yml", ".yaml", ".sql", ".prom", ".tsv", ".csv", ""}


def texts() -> Iterator[tuple[Path, int, str]]:
    """Every line of every text file, but for this one and what is installed or generated."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        is_foreign = parts[0].startswith(".") and parts[0] not in {".ci", ".streamlit"}
        if is_foreign or path == Path(__file__):
            continue
        if path.is_file() and path.suffix in TEXTS:
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
                yield path, number, line


@pytest.mark.parametrize(
    ("rule", "pattern"),
    [
        ("nothing is left for later", r"\b(TODO|FIXME|XXX)\b"),
        ("nothing depends on one machine's folders", r"(?<![\w.~}$-])/(work|root|home)/[\w.]"),
    ],
)
def test_texts(rule: str, pattern: str) -> None:
    found = re.compile(pattern)
    report(
        rule,
        [f"{name_of(path)}:{number}: {line.strip()[:100]}" for path, number, line in texts() if found.search(line)],
    )
