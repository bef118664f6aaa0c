"""Labelled tasks: read, checked, tokenized, and searched for test texts that stand in the train split."""
