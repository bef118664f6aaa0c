"""Reads texts from files on this machine or in remote stores, and from datasets.

- `filesystem`: resolves paths, URLs, folders and patterns, and retries store errors.
- `formats`: recognises the format of a file by its name and its first bytes.
- `storage`: opens and decompresses files, and detects changes of them.
- `lines`: reads lines, paragraphs and JSON objects.
- `delimited`: reads csv and tsv files.
- `records`: reads the records of a file in any format, and checks its fields.
- `hub`: reads datasets with the `datasets` library.
- `manifest`: lists the parts of a corpus with their digests, and the items that tasks read.
"""
