"""How forgetting is fought: what a method adds to plain training."""
