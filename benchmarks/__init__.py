"""One file a claim: `python -m benchmarks.NAME [--quick] [--json FILE]`."""
