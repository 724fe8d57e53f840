"""How this program was started, for usage lines and advice."""

import sys
from pathlib import Path

PROGRAM = "ownlm" if Path(sys.argv[0]).stem == "ownlm" else "python -m trainer"
"""The console command, or the module that it stands for."""
