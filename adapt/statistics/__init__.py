"""Statistics of scores: means over seeds, comparisons of recipes, and their uncertainty."""
