"""Every setting, how levels of settings add up, and the packaged profiles."""
