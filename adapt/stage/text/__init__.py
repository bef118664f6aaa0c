"""Stages from files to token shards.

- `listing`: which files a corpus consists of.
- `reading`: checks before it is read, and what is kept out of it.
- `dedup`: which documents are copies.
- `prepare`: text as token shards; `gather`: several of these as one.
- `task_texts`: the text of tasks without labels; `prepare_texts`: what a stage wrote, as token shards.
- `similarity`: how near domains are.
"""
