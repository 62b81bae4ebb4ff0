"""Progressive Graph Learning, one idea a file; read `training` first."""
