"""`make bench`: figures beside floors measured in the same run, as ratios; never a timed test."""
