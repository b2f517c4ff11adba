"""The commands of the group "inspect the content", one file for each with its help, options and code."""
