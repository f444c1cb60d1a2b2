"""What starts by itself: triggers, who finds out that it is time, and the firing."""
