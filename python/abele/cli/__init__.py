"""Commands of the Python packages; pyproject.toml names them. `abele NAME` starts abele-NAME (tools/abele.cc)."""
