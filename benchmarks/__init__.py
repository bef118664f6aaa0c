"""One file a claim: `python -m benchmarks.NAME [--quick] [--json FILE] [--data FOLDER] [--models FOLDER]`.

`slices` and `small_decoder` make what docs/science/replication.md starts from; `claims`, `sequences` and `versus` make
tables of finished chains; `equality` compares what two versions of the code compute. These six are no benchmarks and
have arguments of their own.
"""
