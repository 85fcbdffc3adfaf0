"""One audited run, from config to result."""
