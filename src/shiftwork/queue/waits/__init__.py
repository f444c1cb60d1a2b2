"""What tasks wait for besides other tasks: a time, an event, a person."""
