"""The progress of chains and searches: what is finished, running or waiting (and why), latest reports, and costs."""
