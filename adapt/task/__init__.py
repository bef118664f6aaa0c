"""Labelled tasks: read, checked, tokenized, and searched for test texts that are in the train split.

- `labelled_examples`: examples as their files hold them, checked.
- `labels`: labels that were probably misread, refused or reported.
- `dataset`: the files of a prepared task.
- `prepare_task`: tokenizes a task, searches it for leaks, and writes it.
"""
