"""Statistics of scores: means over seeds, comparisons, and how sure they are."""
