"""Notifications to real receivers on this machine, which refuse, hang, redirect and recover."""
