"""Tables for people, on stderr: what a job achieved, and what a chain has done."""

from adapt.summary.advice import show_advice
from adapt.summary.compared import show_comparison
from adapt.summary.merged import show_merged
from adapt.summary.planned import show_forecast, show_plan
from adapt.summary.scored import show_scores
from adapt.summary.selected import show_selection
from adapt.summary.sequence import show_sequence
from adapt.summary.similar import show_similarity
from adapt.summary.trained import show_summary
from adapt.summary.vocabulary import show_begun, show_extended, show_taught, show_trimmed, show_vocabulary

__all__ = [
    "show_advice",
    "show_begun",
    "show_comparison",
    "show_extended",
    "show_forecast",
    "show_merged",
    "show_plan",
    "show_scores",
    "show_selection",
    "show_sequence",
    "show_similarity",
    "show_summary",
    "show_taught",
    "show_trimmed",
    "show_vocabulary",
]
