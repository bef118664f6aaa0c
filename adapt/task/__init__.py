"""Reads, checks and tokenizes labelled tasks, and searches them for test texts that are in the train split.

- `labelled_examples`: reads and checks labelled examples.
- `labels`: raises errors or returns warnings for labels that were probably misread.
- `prepare_task`: tokenizes a task, searches it for leaks, and writes and reads its files.
"""
