"""What a run's Ray task hands back is read without torch, and written whole."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

from adapt.finetune.found import CURVE_FILE, DEV_PREDICTIONS_FILE, PREDICTIONS_FILE, RunFound

FOUND = RunFound(
    metrics={"macro_f1": 0.5},
    curve=[{"epoch": 1, "loss": 0.7, "dev": 0.4}],
    predictions={"dev": [{"id": 0, "label": 1}], "test": [{"id": 0, "label": "é"}, {"id": 1, "label": 0}]},
)


def test_the_driver_reads_it_without_importing_torch(tmp_path: Path) -> None:
    file = tmp_path / "found"
    file.write_bytes(pickle.dumps(FOUND))
    read = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb')); print([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", read, str(file)], capture_output=True, text=True, check=True)
    assert "'adapt.finetune.found'" in done.stdout
    assert "'torch'" not in done.stdout
    assert "'transformers'" not in done.stdout


def test_predictions_and_curve_are_written_line_by_line(tmp_path: Path) -> None:
    FOUND.write(tmp_path)
    for name, file in (("test", PREDICTIONS_FILE), ("dev", DEV_PREDICTIONS_FILE)):
        lines = (tmp_path / file).read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == FOUND.predictions[name]
    assert json.loads((tmp_path / CURVE_FILE).read_text()) == FOUND.curve
