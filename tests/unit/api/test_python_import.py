"""``import rlexp`` is light, and its functions stay what they are."""

from __future__ import annotations

import inspect
import subprocess
import sys

import rlexp
import rlexp.compare.curve

LIBRARIES = {"gymnasium", "numpy", "pydantic", "ray", "rich", "torch", "typer", "yaml"}


def test_import_loads_only_pythons_own_libraries() -> None:
    program = f"import sys, rlexp; print(sorted({LIBRARIES} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_functions_have_signatures_and_docs() -> None:
    for name in rlexp.__all__:
        function = getattr(rlexp, name)
        if name != "__version__":
            assert inspect.isfunction(function), name
            assert inspect.getdoc(function), name
            assert inspect.signature(function).return_annotation is not inspect.Parameter.empty, name


def test_package_of_results_does_not_replace_the_function() -> None:
    program = "import rlexp; import rlexp.compare.table; print(rlexp.results.__name__, callable(rlexp.results))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "results True\n"
