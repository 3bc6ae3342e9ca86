"""One command, one file. Imports the rooms below; nothing imports it."""
