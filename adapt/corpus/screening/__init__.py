"""Which documents enter, and which are held out.

- `heldout`: no text is both measured and trained on.
- `evaluation`: the texts of evaluation sets.
- `decontaminate`: documents that share runs of words with them leave.
- `tally`: counts of what was read, and how much of it may be unreadable.
- `clean`: passes texts through the blocks and checks, and counts what leaves for which reason.
- `item`: the documents of an item that pass, each with its id.
- `screen`: brings a reading task what it needs for that.
"""
