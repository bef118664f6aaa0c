"""What tokenizes does without transformers' models."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.heavy
def test_a_tokenizer_is_loaded_without_the_library_s_models(tiny_bert: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from adapt.model.literal import load_text_tokenizer\n"
        "from adapt.model.locate import Pretrained\n"
        f"folder = Path({str(tiny_bert)!r})\n"
        "print(load_text_tokenizer(Pretrained(folder, folder))('the')['input_ids'])\n"
        "sys.exit(str([name for name in sys.modules if 'transformers.model' in name and '.modeling_' in name]))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    known = {"transformers.modeling_utils", "transformers.models.bert.modeling_bert"}
    assert ran.stdout.startswith("["), ran.stderr
    assert not [name for name in known if name in ran.stderr]
