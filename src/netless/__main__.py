"""``python -m netless``."""

from .cli import main

raise SystemExit(main())
