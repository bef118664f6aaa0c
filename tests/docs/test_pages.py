"""The code blocks of the pages run without errors, or are marked with the reason why they are not run.

`tests/docs/blocks.py` describes the marks.
"""

from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, blocks_of, tested_pages
from tests.docs.page_run import page_run, planned, run_page
from tests.docs.world import make_data, make_models

ELSEWHERE = {"start/tutorial.md": "tests/test_tutorial.py", "develop/extending.md": "tests/test_extension.py"}
"""Pages with their own tests, which run the blocks and also check their output."""
SLOW = {"guide/chains.md", "guide/forgetting.md", "start/faq.md"}
"""Pages whose blocks take more than 20 s."""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the files that pages read."""
    return make_data(tmp_path_factory.mktemp("docs-data"))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with tiny models, named like published models."""
    return make_models(tmp_path_factory.mktemp("docs-models"))


@pytest.mark.heavy
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name in tested_pages()
        if name not in ELSEWHERE
    ],
)
def test_the_blocks_of_a_page_run(name: str, data: Path, models: Path, tmp_path: Path) -> None:
    page = DOCS / name
    with page_run(tmp_path / "page", data, models) as run:
        run_page(page, blocks_of(page.read_text("utf-8")), run)


def test_pages_that_are_tested_elsewhere_exist() -> None:
    assert {*tested_pages()} >= ELSEWHERE.keys()
    assert all((DOCS.parent / file).is_file() for file in ELSEWHERE.values())


SAMPLE = """\
# A page

<!-- test: plan -->
```sh
dontstop dapt --config my.yaml   # a comment
```

```yaml title="my.yaml"
name: papers
```

<!-- test: none, needs a cluster -->

```sh
ray up
```

1. In a list:

    ```python
    if True:
        print(1)
    ```

<!-- test: none -->
```sh
ls
```

```
bare
```

```toml
a = 1
```
"""


def test_blocks_are_found_with_their_marks() -> None:
    plan, file, cluster, indented, unreasoned, bare, toml = blocks_of(SAMPLE)
    assert (plan.language, plan.mark, plan.title, plan.line) == ("sh", "plan", "", 4)
    assert (file.language, file.title, file.text) == ("yaml", "my.yaml", "name: papers\n")
    assert (cluster.mark, cluster.reason) == ("none", "needs a cluster")
    assert indented.text == "if True:\n    print(1)\n"
    assert [block.problem != "" for block in blocks_of(SAMPLE)] == [False] * 4 + [True] * 3
    assert "needs a reason" in unreasoned.problem
    assert "no language" in bare.problem
    assert "toml" in toml.problem


@pytest.mark.parametrize(
    ("command", "plan"),
    [
        ("dapt --config a.yaml", "chain plan --job dapt --config a.yaml"),
        ("dapt --help", "dapt --help"),
        ("vocabulary extend --config a", "chain plan --job vocabulary --vocabulary.action=extend --config a"),
        ("chain run f.yaml --data x", "chain plan f.yaml --data x"),
        ("chain submit f --address http://h --job-per-stage --only a=b", "chain plan f --only a=b"),
        ("chain submit --job tapt --config a --retries=3", "chain plan --job tapt --config a"),
        ("chain logs f dapt --data x", "chain plan f --data x"),
        ("tune --config a --space tapt", "tune plan --config a --space tapt"),
        ("tune status --config a", "tune plan --config a"),
        ("doctor", "doctor"),
    ],
)
def test_a_plan_stands_for_every_command(command: str, plan: str) -> None:
    assert planned(command.split()) == plan.split()
