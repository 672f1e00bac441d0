"""One module for each version of the tables, in the order of their names."""
