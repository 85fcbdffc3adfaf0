"""What people read of a run: words, table, page, plots, and the files of its folder."""
