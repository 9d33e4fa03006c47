"""What `d2lpar calibrate` measures of this machine, and how it reports it."""
