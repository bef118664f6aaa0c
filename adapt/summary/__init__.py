"""Tables for people, on stderr: what a job achieved, and what a chain has done."""

from adapt.summary.planned import show_forecast, show_plan
from adapt.summary.similar import show_similarity
from adapt.summary.trained import show_summary

__all__ = ["show_forecast", "show_plan", "show_similarity", "show_summary"]
