"""The commands, one file for each with its help, options and code. The file has the name of the command, with _ for -."""
