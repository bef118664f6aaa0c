"""Benchmarks. Each file measures the numbers behind one claim about the project, such as its training speed.

Usage: `python -m benchmarks.NAME [--quick] [--json FILE] [--data FOLDER] [--models FOLDER]`

Some files are not benchmarks and take different arguments. `slices`, `few_labels`, `small_decoder` and `small_electra`
make the data and the models of the studies in docs/science. `claims`, `sequences`, `study_table` and files that end in
`_study` print tables of finished chains. `sequential` runs a sequential study. `equality` compares the results of two
versions of the code.
"""
