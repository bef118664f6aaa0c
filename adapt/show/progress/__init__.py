"""How far chains and searches are: what is finished, what runs and what it said, what waits and why, what it cost."""
