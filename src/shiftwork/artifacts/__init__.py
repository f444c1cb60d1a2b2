"""Where the bytes of artifacts lie: a folder, or a bucket. What they mean, the database knows."""
