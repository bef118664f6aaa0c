"""From files, wherever they lie, to texts.

- `retry`: errors of storage that may pass are tried again.
- `folders`: what folders and patterns of this machine stand for.
- `location`: on this machine, or at a URL.
- `storage`: reads files, and notices when they change.
- `formats`: told by a file's name.
- `contents`: what a file holds, if that is not what its name says.
- `opened`: a file's bytes, decompressed.
- `lines`: lines and paragraphs.
- `objects`: JSON objects.
- `rows`: the rows of csv and tsv files, as they are in them.
- `quotes`: whether quotes enclose the cells of csv and tsv files.
- `separated`: csv and tsv.
- `tables`: Parquet and Arrow.
- `records`: the texts of a file in any format.
- `fields`: the fields that the records of a file have.
- `docstrings`: the built-in demo corpus.
- `hub`: repositories of the `datasets` library.
- `manifest`: what a corpus consists of, by its content.
- `sources`: the sources of a corpus, and the items that tasks read of them.
"""
