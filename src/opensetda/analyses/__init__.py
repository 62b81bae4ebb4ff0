"""The paper's analyses, one a file: each gives a table and a figure."""
