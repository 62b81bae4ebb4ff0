"""What the readers accept at most; a larger file is refused in one line that says the limit."""

LONGEST_LABEL = 200  # characters of a class name
LONGEST_ID = 4096  # characters of a sample's name: the longest path of Linux
LONGEST_ROW = 1 << 28  # bytes of a row in a CSV file
LARGEST_IMAGE = 1 << 30  # bytes of an image file, or of an image in a tar shard
