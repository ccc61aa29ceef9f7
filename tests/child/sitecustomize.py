"""What Python processes that the tests start run first: they look for cyclic garbage less often.

Such a process imports or plans for a few seconds and ends. With Python's own thresholds it spends up to a third of that
time looking for garbage, and finds next to none.
"""

import gc

gc.set_threshold(100_000, 20, 20)
