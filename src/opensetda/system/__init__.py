"""Files, memory and processes: what the operating system gives."""
