"""HTTP schemas of requests and answers, and errors as problem+json."""
