"""Benchmarks. Each file measures the numbers behind one claim about the project, such as its training speed.

Usage: `python -m benchmarks.NAME [--quick] [--json FILE] [--data FOLDER] [--models FOLDER]`

Eight files are not benchmarks and take different arguments. `slices` and `small_decoder` make the data and the decoder
of the studies in docs/science. `claims`, `sequences`, `selection_study`, `vocabulary_study` and `versus` print tables
of finished chains. `equality` compares the results of two versions of the code.
"""
