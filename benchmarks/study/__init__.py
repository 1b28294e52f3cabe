"""The study notes: which experiments there are, what is measured, how claims are judged, and the page."""
