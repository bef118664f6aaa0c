"""Writes the table of docs/develop/benchmarks.md from benchmarks/history.json.

Usage: `benchmark_table.py` writes the table. With `--add RESULT.json --machine E --command "..."`, it first adds a
run to the history. RESULT.json is the file that the benchmark has written with `--json`.
"""

import argparse
import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HISTORY = ROOT / "benchmarks" / "history.json"
PAGE = ROOT / "docs" / "develop" / "benchmarks.md"
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def met(value: float, target: str) -> bool:
    """Returns whether a measured value meets a target such as `<= 20`."""
    sign, bound = target.split()
    return value >= float(bound) if sign == ">=" else value <= float(bound)


def last_figures(history: dict[str, Any], benchmark: str, figure: str) -> dict[str, tuple[float, str]]:
    """Returns a figure's last value on each machine, marked by `°` for the quick form and `†` for a noisy run."""
    found = {}
    for run in history["runs"]:
        if run["benchmark"] == benchmark and figure in run["figures"]:
            marks = ("°" if "--quick" in run["command"] else "") + ("†" if run.get("noisy") else "")
            found[run["machine"]] = run["figures"][figure], marks
    return found


def table(history: dict[str, Any]) -> str:
    """Formats the table in Markdown. Figures that miss the target are bold."""
    lines = ["|claim|benchmark|target|last figure on each machine|", "|---|---|--:|---|"]
    for claim in history["claims"]:
        last = last_figures(history, claim["benchmark"], claim["figure"])
        cells = []
        for machine in sorted(last):
            value, marks = last[machine]
            bold = "" if met(value, claim["target"]) else "**"
            cells.append(f"{machine}&nbsp;{bold}{value:.3g}{bold}{marks}")
        target = claim["target"].replace(" ", "&nbsp;").replace("<=", "≤").replace(">=", "≥")
        lines.append(f"|{claim['claim']}|`{claim['benchmark']}`|{target}|{', '.join(cells)}|")
    return "\n".join(lines) + "\n"


def page_with(text: str, history: dict[str, Any]) -> str:
    """Returns the page with a new table in place of the old one."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table(history)}\n{END}{rest.split(END)[1]}"


def entry(result: dict[str, Any], machine: str, command: str) -> dict[str, Any]:
    """Converts the result that a benchmark wrote with `--json` to a run of the history."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    noisy = any(rounds["noisy_rounds"] for rounds in result["rounds"].values())
    return {
        "machine": machine,
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip() or None,
        "benchmark": result["name"],
        "command": command,
        "figures": result["figures"],
        **({"noisy": True} if noisy else {}),
    }


def main() -> None:
    """Adds the result given by `--add`, if any, to the history, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", type=Path, help="file that a benchmark wrote with --json")
    parser.add_argument("--machine", help="letter of the machine, as in the history")
    parser.add_argument("--command", default="", help="command that was run")
    given = parser.parse_args()
    history = json.loads(HISTORY.read_text("utf-8"))
    if given.add:
        if given.machine not in history["machines"]:
            parser.error(f"--machine: use one of {', '.join(history['machines'])}, or describe it in {HISTORY.name}")
        history["runs"].append(entry(json.loads(given.add.read_text("utf-8")), given.machine, given.command))
        HISTORY.write_text(json.dumps(history, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(page_with(PAGE.read_text("utf-8"), history), "utf-8")


if __name__ == "__main__":
    main()
