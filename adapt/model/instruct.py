"""Models that were taught to follow instructions, known by their chat template.

Imports neither torch nor transformers: a job asks it before anything is loaded.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from adapt.console import log
from adapt.model.locate import TOKENIZER_CONFIG, Pretrained, read_json

TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
"""Files and folders beside the tokenizer that hold chat templates; tokenizer_config.json may hold one too."""


def is_instruct(tokenizer: Path) -> bool:
    """Whether the folder of a tokenizer has a chat template."""
    settings = tokenizer / TOKENIZER_CONFIG
    in_settings = settings.is_file() and bool(read_json(settings).get("chat_template"))
    return in_settings or any((tokenizer / name).exists() for name in TEMPLATES)


@cache
def warn_of_instruct(pretrained: Pretrained) -> None:
    """Tells, once, that a model which is to be the base of something is an instruct model."""
    if is_instruct(pretrained.tokenizer):
        log(
            f"warning: {pretrained.model} is an instruct model (it has a chat template); training on plain text makes"
            " such models forget to follow instructions: adapt the base that it was made from, then add what the"
            " instruct model learnt (job: merge, merge.kind: residual; docs/merging.md)"
        )
