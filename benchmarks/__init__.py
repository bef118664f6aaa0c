"""One file a claim: `python -m benchmarks.NAME [--quick] [--json FILE] [--data FOLDER] [--models FOLDER]`.

`slices` and `small_decoder` make what docs/replication.md starts from; `equality` compares what two versions compute; `claims`, `sequences` and `versus` make tables
of finished chains. These five are no benchmarks and have arguments of their own.
"""
