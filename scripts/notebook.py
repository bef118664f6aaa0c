"""Runs the code cells of a notebook in order, without Jupyter.

    python scripts/notebook.py NOTEBOOK OUT [PARAMETERS]

PARAMETERS, as JSON, replace values of the cell with the tag `parameters`. OUT is the path of the new notebook, which
has the outputs of the cells. The path of the folder in which the cells ran is removed from these outputs.
"""

import ast
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def shown(value: Any) -> dict[str, Any]:
    """Converts the value of a cell's last line to the output that a notebook stores."""
    data = {"text/plain": str(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(keepends=True)
    return {"output_type": "execute_result", "metadata": {}, "data": data}


def run_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a cell, and returns its outputs."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    said, found = io.StringIO(), []
    with redirect_stdout(said):
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None
    if said.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": said.getvalue().splitlines(keepends=True)})
    return [*found, shown(value)] if value is not None else found


def without(text: str, outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Removes a text from outputs."""
    cleaned: list[dict[str, Any]] = json.loads(json.dumps(outputs, ensure_ascii=False).replace(text, ""))
    return cleaned


def main() -> None:
    notebook = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    parameters = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        cell["outputs"] = without(f"{Path.cwd()}/", run_cell("".join(cell["source"]), names))
        cell["execution_count"] = number
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number
        if "parameters" in cell["metadata"].get("tags", []):
            assert parameters.keys() <= names.keys()
            names.update(parameters)
    Path(sys.argv[2]).write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
