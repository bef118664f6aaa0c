"""From files, wherever they are, to texts.

- `filesystem`: paths, URLs, folders and patterns; retries.
- `formats`: the format of a file, by name and by first bytes.
- `storage`: opens files, decompressed, and notices when they change.
- `lines`: lines, paragraphs and JSON objects.
- `delimited`: csv and tsv.
- `records`: the records of a file in any format, and its fields.
- `hub`: repositories of the `datasets` library.
- `manifest`: the parts of a corpus with their digests.
- `sources`: the sources of a corpus, and the items that tasks read of them.
"""
