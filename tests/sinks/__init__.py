"""Notifications out: to real receivers on this machine, which refuse, hang, redirect and come back."""
