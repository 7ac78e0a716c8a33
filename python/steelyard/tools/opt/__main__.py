import sys

from steelyard.tools.opt.entry import main

sys.exit(main())
