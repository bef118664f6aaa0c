"""Tables for people, on stderr: what a job achieved, and what a chain has done."""
