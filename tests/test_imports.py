"""Who may import whom, and what stands nowhere in the code. Reads the source; loads little of it.

Each rule is a function from a file's syntax tree to its breaches, and is tried on a breach first.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVICES = {"drafter_service", "gateway", "verifier_service"}
PACKAGES = ["paceline", *sorted(SERVICES)]

# (file, imported module): why it is imported inside a function.
ALLOWED_INSIDE_FUNCTIONS = {
    ("paceline/server.py", "uvloop"): "not on every platform",
    ("paceline/cli/bench.py", "importlib"): "only figures need the extra bench",
    ("paceline/cli/distill.py", "importlib"): "OpenMP as for doctor; figures as for bench",
    ("paceline/cli/recycling_table.py", "importlib"): "only this command needs torch, --help not",
    ("paceline/cli/main.py", "importlib"): "a sub-command is loaded when it is invoked",
    ("paceline/cli/doctor.py", "importlib"): "OpenMP reads its settings as torch loads",
    ("paceline/model/load.py", "importlib"): "only a hub id needs the hub's client",
    ("drafter_service/drafters.py", "importlib"): "a lookup drafter runs without torch",
    ("verifier_service/__main__.py", "importlib"): "OpenMP reads its settings as torch loads",
}

# The two ends of each wire, and what turns its messages into dataclasses.
HOLDS_MESSAGES = {
    "paceline/client.py",
    "paceline/client_codec.py",
    "paceline/conversation.py",
    "paceline/codec.py",
    "paceline/verifier_status.py",
    "drafter_service/servicer.py",
    "gateway/codec.py",
    "gateway/sequence_codec.py",
    "gateway/servicer.py",
    "gateway/verifier.py",
    "verifier_service/drafters.py",
    "verifier_service/servicer.py",
}
# These put a servicer into a server, and hold no message.
REGISTERS_SERVICERS = {
    "drafter_service/__main__.py",
    "gateway/gateway.py",
    "verifier_service/app.py",
}

UNSAFE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def files(package: str) -> list[Path]:
    """The hand-written modules of a package."""
    generated = ROOT / "paceline" / "v1"
    return [path for path in (ROOT / package).rglob("*.py") if generated not in path.parents]


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Full names, wherever the import stands. `from a import b` counts as a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_inside_functions(tree: ast.AST) -> Iterator[str]:
    """Modules imported by a statement in a function, or by a call anywhere."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in ast.walk(function):
                if isinstance(statement, ast.Import):
                    yield from (alias.name for alias in statement.names)
                elif isinstance(statement, ast.ImportFrom):
                    yield statement.module or ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) in {
            "importlib.import_module",
            "import_module",
            "__import__",
        }:
            yield "importlib"


def type_checking_blocks(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and name_of(node.test).endswith("TYPE_CHECKING"):
            yield f"line {node.lineno}: an import that exists for the type checker only"


def unsafe_uses(tree: ast.AST) -> Iterator[str]:
    """Whatever runs, or unpickles, what somebody else wrote."""
    for module in imported_modules(tree):
        if module.split(".")[0] in UNSAFE_MODULES:
            yield f"imports {module}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func)
        if name in {"eval", "exec", "torch.load"}:
            yield f"line {node.lineno}: {name}"
        for keyword in node.keywords:
            off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg == "trust_remote_code" and not off:
                yield f"line {node.lineno}: trust_remote_code"


def name_of(node: ast.AST) -> str:
    """a.b.c of a dotted name; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return ""


def breaches(rule: Callable[[ast.AST], Iterator[str]]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {breach}"
        for package in PACKAGES
        for path in files(package)
        for breach in rule(parse(path))
    ]


@pytest.mark.parametrize(
    ("rule", "source", "expected"),
    [
        (imported_modules, "import a.b\nfrom c import d, e", ["a.b", "c.d", "c.e"]),
        (imported_modules, "def f():\n    import a", ["a"]),
        (imports_inside_functions, "import a\ndef f():\n    from b import c", ["b"]),
        (imports_inside_functions, "class C:\n    async def f(self):\n        import a", ["a"]),
        (imports_inside_functions, "import_module('a')", ["importlib"]),
        (
            type_checking_blocks,
            "if typing.TYPE_CHECKING:\n    import a",
            ["line 1: an import that exists for the type checker only"],
        ),
        (unsafe_uses, "from pickle import loads", ["imports pickle.loads"]),
        (unsafe_uses, "x = torch.load(f)", ["line 1: torch.load"]),
        (unsafe_uses, "eval(x)\nmodel.eval()\nexec(y)", ["line 1: eval", "line 3: exec"]),
        (unsafe_uses, "f(trust_remote_code=True)", ["line 1: trust_remote_code"]),
        (
            unsafe_uses,
            "f(trust_remote_code=x)\ng(trust_remote_code=False)",
            ["line 1: trust_remote_code"],
        ),
    ],
)
def test_a_rule_sees_a_breach(
    rule: Callable[[ast.AST], Iterator[str]], source: str, expected: list[str]
):
    assert list(rule(ast.parse(source))) == expected


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_no_service_but_itself(package: str):
    assert files(package), f"{package} is empty"
    forbidden = SERVICES - {package} | {"tests", "benchmarks"}
    found = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files(package)
        for module in imported_modules(parse(path))
        if module.split(".")[0] in forbidden
    ]
    assert found == []


def test_messages_stop_at_servicers_and_clients():
    importers = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in files(package)
        for module in imported_modules(parse(path))
        if module.startswith("paceline.v1.")
    }
    assert sorted(importers - HOLDS_MESSAGES - REGISTERS_SERVICERS) == []


@pytest.mark.parametrize(
    "module",
    [
        *("gateway.servicer", "gateway.__main__", "paceline.client"),
        *("paceline.cli.bench", "paceline.cli.certify", "paceline.cli.doctor"),
    ],
)
def test_the_gateway_and_its_clients_never_load_torch(module: str):
    code = (
        f"import sys, {module}\n"
        "heavy = sorted({'torch', 'transformers', 'numpy'} & set(sys.modules))\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_paceline_loads_nothing():
    code = (
        "import sys\nbefore = set(sys.modules)\nimport paceline\n"
        "loaded = sorted(set(sys.modules) - before)\n"
        "assert loaded == ['paceline'], loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_is_imported_inside_a_function_but_for_a_reason():
    found = {
        (str(path.relative_to(ROOT)), module)
        for package in PACKAGES
        for path in files(package)
        for module in imports_inside_functions(parse(path))
    }
    assert sorted(found - ALLOWED_INSIDE_FUNCTIONS.keys()) == []
    assert sorted(ALLOWED_INSIDE_FUNCTIONS.keys() - found) == [], "no longer needed"


def test_no_import_exists_for_the_type_checker_only():
    assert breaches(type_checking_blocks) == []


def test_nothing_runs_or_unpickles_what_others_wrote():
    assert breaches(unsafe_uses) == []
