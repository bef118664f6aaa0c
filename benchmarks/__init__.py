"""Benchmarks, one file per claim.

Usage: `python -m benchmarks.NAME [--quick] [--json FILE] [--data FOLDER] [--models FOLDER]`

Eight files are no benchmarks and have their own arguments: `slices` and `small_decoder` make the data and the decoder
of the studies in docs/science; `claims`, `sequences`, `selection_study`, `vocabulary_study` and `versus` print tables
of finished chains. `equality` compares what two versions of the code compute.
"""
