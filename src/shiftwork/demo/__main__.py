"""`python -m shiftwork.demo`."""

import argparse
import sys

from shiftwork.demo.story import run

parser = argparse.ArgumentParser(prog="python -m shiftwork.demo", description="Watch a small fleet work.")
parser.add_argument("--keep", action="store_true", help="keep the queue's file for inspection")
parser.add_argument("--json", action="store_true", help="print only the summary, as JSON")
options = parser.parse_args()
sys.exit(run(keep=options.keep, json=options.json))
