"""Which line of a stack is the user's own."""

from __future__ import annotations

import pytest

from ingero.store.call_stacks import PythonPlace, own_place

COMPILED = "/tmp/torchinductor_root/3i/c3ivqskn32ceelf42wk3oyweuoxuworpvykrm6mcmw3f4h7wq5m7.py"  # as found on an H100
LIBRARY = "/opt/venv/lib/python3.12/site-packages/torch/_inductor/runtime/triton_heuristics.py"
MAIN = "/srv/me/train.py"


def places(*files: str) -> list[PythonPlace]:
    return [PythonPlace(file, 1, "f") for file in files]


@pytest.mark.parametrize(
    ("files", "own"),
    [
        ((LIBRARY, MAIN), MAIN),
        ((COMPILED, LIBRARY, MAIN), MAIN),
        (("<string>", LIBRARY, COMPILED, MAIN), MAIN),  # what Triton compiles to launch a kernel
        (("<string>", LIBRARY, "<string>"), "<string>"),  # python -c
        (("<stdin>", LIBRARY), "<stdin>"),
        ((LIBRARY, COMPILED), LIBRARY),
        (("/srv/me/3i/c3ivq.py", MAIN), "/srv/me/3i/c3ivq.py"),
    ],
)
def test_what_a_compiler_wrote_is_not_the_users_line(files: tuple[str, ...], own: str) -> None:
    found = own_place(places(*files))
    assert found is not None
    assert found.file == own


def test_no_python_no_line() -> None:
    assert own_place([]) is None


@pytest.mark.parametrize("root", ["/srv/ingero/src", "/opt/venv/lib/python3.12/site-packages"])
def test_the_programs_of_the_demo_are_the_users_own_wherever_ingero_lies(root: str) -> None:
    assert PythonPlace(f"{root}/ingero/demo/workloads/train.py", 136, "training_loop").is_own
    assert not PythonPlace(f"{root}/ingero/demo/workloads/minitorch/tensor.py", 88, "item").is_own
