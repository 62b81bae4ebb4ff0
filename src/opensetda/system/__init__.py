"""Files and memory: what the operating system gives."""
