"""`python -m shiftwork`: the command line."""

from shiftwork.cli import main

if __name__ == "__main__":
    main(prog_name="shiftwork")
