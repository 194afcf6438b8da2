"""One edit a file: the file's name is the edit's `kind`, and being here is the whole registration."""
