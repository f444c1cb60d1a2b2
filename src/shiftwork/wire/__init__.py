"""What goes over HTTP between servers and clients: the bodies, the answers, and errors as problem+json."""
