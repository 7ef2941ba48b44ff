"""One file per API. Each says which versions it serves and what changed between them, and has one `handle`."""
