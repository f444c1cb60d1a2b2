"""Finding tasks: by words in their title, payload, tags and errors, and by short ids."""
