"""The parts of ./dev: setup.py prepares the machine, commands.py does the work, main.py reads the command line."""
