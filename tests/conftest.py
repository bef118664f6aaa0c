"""Keeps Ray and Hugging Face quiet and offline in every test and in the processes that tests start."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.pop("TOKENIZERS_PARALLELISM", None)
