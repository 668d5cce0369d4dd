"""The documentation says what the code does: links, commands, annotations and generated references are checked."""
