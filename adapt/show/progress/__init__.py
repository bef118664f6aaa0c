"""Shows the progress of chains and searches: finished, running and waiting stages (and why they wait), and costs."""
